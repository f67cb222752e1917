"""What every part of a shard shares: its clock, its timers, its journal and the answers it has for callers.

A shard is one partition of `__consumer_offsets` and everything that its records mean. It is handed events
(a request, a timer, the result of a write) together with `now`, and gives back `Effects`: what to answer
to whom, what to append, when to be woken.

**Writes.** At most one batch of a shard is on its way to storage. While it is, further records gather in
the next batch, so a slow store makes batches larger and not the queue longer. An answer that depends on a
record is tied to its batch and is given when that batch is durable.

**State ahead of storage.** Offsets and classic groups change only when their records are durable. A group of
the consumer protocol *is* its records, so it changes at once, lest a second member wait a whole
round trip to storage for the first: the journal keeps the group as it was before the batch, puts it back
if the batch fails, and holds back every answer that could show the unwritten state. A failed batch takes
all batches behind it along, because they were decided on state that never came to be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.records import Key, Record, Value, to_record
from penstock.groups.timers import Timers
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.groups.offsets.committed import Offsets
    from penstock.groups.settings import GroupSettings
    from penstock.groups.table import Group
    from penstock.metadata.image import ClusterImage
    from penstock.wire.schema import ApiMessage

Ticket = int
"""Names one request that waits for its answer. Chosen by the caller, unique among those that wait."""


class Now(NamedTuple):
    ms: int
    """Milliseconds that never go back: deadlines."""
    wall_ms: int
    """Milliseconds since the epoch: timestamps in records, retention."""


class Client(NamedTuple):
    """Who sent a request, as far as groups remember it."""

    id: str = ""
    host: str = ""


class Producer(NamedTuple):
    """Whose transaction a batch belongs to."""

    id: int
    epoch: int


class Batch(NamedTuple):
    """Records to append together, all or nothing."""

    records: Sequence[Record]
    producer: Producer | None = None


class Effects(NamedTuple):
    answers: Sequence[tuple[Ticket, ApiMessage]]
    batch: Batch | None
    """To be appended now; report `durable` or `failed` before any other batch is handed out."""
    wake_at: int | None
    """Call `tick` at this `Now.ms`, or a little later."""


class GroupError(Exception):
    """A request is refused with this code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


def error_after_append(code: ErrorCode) -> ErrorCode:
    """What members are told when the write behind their answer failed: Kafka's mapping."""
    match code:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
    return code


Durable = Callable[[], None]
Failed = Callable[[ErrorCode], None]


class _Gathering:
    """A batch and what waits for it."""

    __slots__ = ("before", "producer", "records", "size", "waiting")

    def __init__(self, producer: Producer | None) -> None:
        self.producer = producer
        self.records: list[Record] = []
        self.size = 0
        self.waiting: list[tuple[Durable, Failed]] = []
        self.before: dict[str, Group | None] = {}


class Journal:
    """The batches of one shard: one on its way, the rest behind it in order."""

    __slots__ = ("_batch_bytes_max", "_in_flight", "_queue")

    def __init__(self, batch_bytes_max: int) -> None:
        self._batch_bytes_max = batch_bytes_max
        self._queue: deque[_Gathering] = deque()
        self._in_flight = False

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
        batch.waiting.append((durable, failed))

    def then(self, durable: Durable, failed: Failed) -> None:
        """Run one of the two when everything appended so far is decided. Something must be."""
        self._queue[-1].waiting.append((durable, failed))

    def remember(self, group_id: str, before: Callable[[], Group | None]) -> None:
        """The records that are appended next change this group; keep what it was."""
        batch = self._open(None)
        if group_id not in batch.before:
            batch.before[group_id] = before()

    def changes(self, group_id: str) -> bool:
        """Whether the group is ahead of storage."""
        return any(group_id in batch.before for batch in self._queue)

    def durable_form(self, group_id: str, present: Group | None) -> Group | None:
        """The group as storage has it: what others may be shown of it."""
        for batch in self._queue:
            if group_id in batch.before:
                return batch.before[group_id]
        return present

    def changed_groups(self) -> set[str]:
        return {group_id for batch in self._queue for group_id in batch.before}

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def take(self) -> Batch | None:
        if self._in_flight or not self._queue:
            return None
        self._in_flight = True
        batch = self._queue[0]
        return Batch(batch.records, batch.producer)

    def settle(self) -> list[tuple[Durable, Failed]]:
        assert self._in_flight
        self._in_flight = False
        return self._queue.popleft().waiting

    def fail(self) -> tuple[dict[str, Group | None], list[tuple[Durable, Failed]]]:
        """Forget every batch: the groups as they were before the first of them, and all who wait."""
        self._in_flight = False
        before: dict[str, Group | None] = {}
        waiting: list[tuple[Durable, Failed]] = []
        for batch in self._queue:
            before = batch.before | before
            waiting.extend(batch.waiting)
        self._queue.clear()
        return before, waiting

    def _open(self, producer: Producer | None) -> _Gathering:
        queue = self._queue
        if (
            not queue
            or (self._in_flight and len(queue) == 1)
            or queue[-1].producer != producer
            or queue[-1].size >= self._batch_bytes_max
        ):
            queue.append(_Gathering(producer))
        return queue[-1]


class Context:
    """The parts of a shard, and the event that it is working on."""

    __slots__ = (
        "answers",
        "groups",
        "image",
        "journal",
        "new_id",
        "now",
        "offsets",
        "settings",
        "timers",
    )

    def __init__(
        self,
        settings: GroupSettings,
        image: ClusterImage,
        new_id: Callable[[], str],
        offsets: Offsets,
    ) -> None:
        self.settings = settings
        self.image = image
        self.new_id = new_id
        self.offsets = offsets
        self.groups: dict[str, Group] = {}
        self.timers = Timers()
        self.journal = Journal(settings.offsets_batch_bytes_max)
        self.now = Now(0, 0)
        self.answers: list[tuple[Ticket, ApiMessage]] = []

    def answer(self, ticket: Ticket, response: ApiMessage) -> None:
        self.answers.append((ticket, response))

    def answer_written(
        self,
        group_id: str,
        ticket: Ticket,
        response: ApiMessage,
        refusal: Callable[[ErrorCode], ApiMessage],
    ) -> None:
        """Answer from a group's state: at once, or when the writes that made that state are durable."""
        if not self.journal.changes(group_id):
            self.answer(ticket, response)
            return
        self.journal.then(
            lambda: self.answer(ticket, response),
            lambda code: self.answer(ticket, refusal(error_after_append(code))),
        )

    def after(self, timeout_ms: int) -> int:
        return self.now.ms + timeout_ms


def nothing() -> None:
    """Nobody waits for this write."""


def ignore(_code: ErrorCode) -> None:
    """Nobody can be told that this write failed; what it would have said is said again later."""


TypedRecord = tuple[Key, Value | None]


def encoded(records: Sequence[TypedRecord]) -> list[Record]:
    return [to_record(key, value) for key, value in records]
