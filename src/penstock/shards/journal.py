"""The batches of one shard on their way to storage.

At most one batch is under way. While it is, further records gather in the next batch. So a slow store makes
batches larger, and not the queue longer. An answer that depends on a record is tied to its batch, and is
given when the batch is durable.

A shard may change state before its records are durable. The journal then remembers the state before the
batch, by a name that the shard chooses. A failed batch takes all batches behind it along, because they were
decided on state that never came to be; `fail` gives back the remembered state.

A record that does not fit into a batch of the topic (`max.message.bytes`) is to fail alone, before anything
is changed. So whoever writes what clients can make large asks the journal first whether it `takes` it.

A batch of a transaction changes no state before it is durable. So it fails alone: the log may refuse it
because its transaction has ended meanwhile, and that is nothing to those who write behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from penstock.shards.shard import Batch, Producer, Record
from penstock.wire.errors import ErrorCode

BATCH_BYTES_MAX = 1_048_588
"""What a topic takes in one batch unless its setting says otherwise."""

_HEADER_BYTES = 61
_RECORD_OVERHEAD_BYTES_MAX = 21

State = TypeVar("State")

Durable = Callable[[], None]
Failed = Callable[[ErrorCode], None]


class _Waiting(NamedTuple):
    """Somebody who waits for a batch."""

    durable: Durable
    failed: Failed
    wrote: bool
    """Whether the batch has records of theirs. If not they wait for all that was appended before."""

    @property
    def both(self) -> tuple[Durable, Failed]:
        return self.durable, self.failed


class _Gathering(Generic[State]):
    """A batch and what waits for it."""

    __slots__ = ("before", "producer", "records", "size", "waiting")

    def __init__(self, producer: Producer | None) -> None:
        self.producer = producer
        self.records: list[Record] = []
        self.size = 0
        self.waiting: list[_Waiting] = []
        self.before: dict[str, State | None] = {}


class Journal(Generic[State]):
    """The batches of one shard: one under way, the rest behind it in order."""

    __slots__ = ("_batch_bytes_max", "_in_flight", "_queue", "topic_bytes_max")

    def __init__(self, batch_bytes_max: int) -> None:
        """`batch_bytes_max`: a batch that has as much is joined by no other record."""
        self._batch_bytes_max = batch_bytes_max
        self.topic_bytes_max = BATCH_BYTES_MAX
        """`max.message.bytes` of the topic."""
        self._queue: deque[_Gathering[State]] = deque()
        self._in_flight = False

    def takes(self, records: Iterable[Record]) -> bool:
        """Whether each of them fits into a batch of the topic. Tombstones do: what they remove is larger."""
        room = self.topic_bytes_max - _HEADER_BYTES
        return all(value is None or _fits(key, value, room) for key, value in records)

    def takes_together(self, records: Iterable[Record]) -> list[Record] | None:
        """The records, if one batch of the topic holds them all. It looks no further than that."""
        room = self.topic_bytes_max - _HEADER_BYTES
        taken: list[Record] = []
        for record in records:
            room -= _record_bytes(len(record.key), len(record.value or b""), len(taken))
            if room < 0:
                return None
            taken.append(record)
        return taken

    def append(
        self,
        records: Sequence[Record],
        durable: Durable,
        failed: Failed,
        producer: Producer | None = None,
    ) -> None:
        batch = self._open(producer)
        batch.records.extend(records)
        batch.size += sum(len(r.key) + len(r.value or b"") for r in records)
        batch.waiting.append(_Waiting(durable, failed, wrote=True))

    def then(self, durable: Durable, failed: Failed) -> None:
        """Run one of the two when everything appended so far is decided."""
        if not self._queue:
            durable()
            return
        self._queue[-1].waiting.append(_Waiting(durable, failed, wrote=False))

    def remember(self, name: str, before: Callable[[], State | None]) -> None:
        """The records that are appended next change this state; keep what it was."""
        batch = self._open(None)
        if name not in batch.before:
            batch.before[name] = before()

    def changes(self, name: str) -> bool:
        """Whether this state is ahead of storage."""
        return any(name in batch.before for batch in self._queue)

    def durable_form(self, name: str, present: State | None) -> State | None:
        """The state as storage has it: what others may be shown of it."""
        for batch in self._queue:
            if name in batch.before:
                return batch.before[name]
        return present

    def changed(self) -> set[str]:
        """The names of all state that is ahead of storage."""
        return {name for batch in self._queue for name in batch.before}

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def take(self) -> Batch | None:
        if self._in_flight or not self._queue:
            return None
        self._in_flight = True
        batch = self._queue[0]
        return Batch(batch.records, batch.producer)

    def finish(self) -> list[tuple[Durable, Failed]]:
        """The batch that was taken is durable: who waited for it."""
        assert self._in_flight
        self._in_flight = False
        return [one.both for one in self._queue.popleft().waiting]

    def fail(self) -> tuple[dict[str, State | None], list[tuple[Durable, Failed]]]:
        """The batch that was taken is not durable: the state to put back, and who is to be told."""
        if not self._queue or self._queue[0].producer is None:
            return self.give_up()
        self._in_flight = False
        # Whoever has nothing in it waits for what came before it, and that is durable.
        return {}, [one.both if one.wrote else _unharmed(one) for one in self._queue.popleft().waiting]

    def refuse(self, producer_id: int) -> list[tuple[Durable, Failed]]:
        """Forget the batches of a producer's transaction that were not taken yet: who is to be told."""
        kept: deque[_Gathering[State]] = deque()
        refused: list[tuple[Durable, Failed]] = []
        for batch in self._queue:
            taken = self._in_flight and not kept
            if taken or batch.producer is None or batch.producer.id != producer_id:
                kept.append(batch)
                continue
            for one in batch.waiting:
                if one.wrote:
                    refused.append(one.both)
                elif kept:
                    kept[-1].waiting.append(one)
                else:
                    refused.append(_unharmed(one))
        self._queue = kept
        return refused

    def give_up(self) -> tuple[dict[str, State | None], list[tuple[Durable, Failed]]]:
        """Forget every batch: all state as it was before the first of them, and all who wait."""
        self._in_flight = False
        before: dict[str, State | None] = {}
        waiting: list[tuple[Durable, Failed]] = []
        for batch in self._queue:
            before = batch.before | before
            waiting.extend(one.both for one in batch.waiting)
        self._queue.clear()
        return before, waiting

    def _open(self, producer: Producer | None) -> _Gathering[State]:
        queue = self._queue
        if (
            not queue
            or (self._in_flight and len(queue) == 1)
            or queue[-1].producer != producer
            or queue[-1].size >= self._batch_bytes_max
        ):
            queue.append(_Gathering(producer))
        return queue[-1]


def _fits(key: bytes, value: bytes, room: int) -> bool:
    rough = len(key) + len(value) + _RECORD_OVERHEAD_BYTES_MAX
    return rough <= room or _record_bytes(len(key), len(value), 0) <= room


def _record_bytes(key: int, value: int, at: int) -> int:
    """In a batch: a length, then attributes, time, place in the batch, key, value and no headers."""
    body = 3 + _varint_bytes(at) + _varint_bytes(key) + key + _varint_bytes(value) + value
    return _varint_bytes(body) + body


def _varint_bytes(number: int) -> int:
    return ((number << 1).bit_length() + 6) // 7 or 1


def _unharmed(one: _Waiting) -> tuple[Durable, Failed]:
    """Nothing that this one depends on failed, and so it is told."""
    return one.durable, lambda _code: one.durable()
