"""A shard with a clock, a store and a cluster that a test holds in its hand.

Nothing becomes durable and no time passes unless the test says so. The store keeps what was written, so a
test can throw the shard away and load another from it: a coordinator that moved, or came back after kill -9.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.groups.core import Client
from penstock.groups.records import Key, Value, read_record
from penstock.groups.shard import GroupShard
from penstock.metadata.image import GROUP_CONFIG, ClusterImage, PartitionInfo, TopicInfo, derive
from penstock.settings.groups import GroupSettings
from penstock.shards.shard import Batch, Effects, Now, Ticket
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ApiMessage

WALL_START = 1_700_000_000_000


class Written(NamedTuple):
    """A record in the log."""

    key: bytes
    value: bytes | None
    producer_id: int
    """Whose transaction it is part of; -1: of none."""


class Marker(NamedTuple):
    """The end of a transaction in the log."""

    producer_id: int
    committed: bool


def topic_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\0")


def make_image(
    topics: Mapping[str, int],
    *,
    version: int = 1,
    group_configs: Mapping[str, Mapping[str, str]] | None = None,
    generation: Mapping[str, int] | None = None,
) -> ClusterImage:
    """Topics by name, with their number of partitions; `generation` makes recreated topics differ."""
    again = generation or {}
    return derive(
        ClusterImage(
            version=version,
            cluster_id="test",
            topics={
                name: TopicInfo(
                    topic_id(name + "'" * again.get(name, 0)),
                    name,
                    tuple(PartitionInfo(1, 0, (1,)) for _ in range(count)),
                )
                for name, count in topics.items()
            },
            configs={(GROUP_CONFIG, name): config for name, config in (group_configs or {}).items()},
        )
    )


class World:
    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        settings: GroupSettings | None = None,
        prompt: bool = True,
    ) -> None:
        """`prompt`: the store writes at once; else `flush` and `fail` decide when and whether."""
        self.settings = settings or GroupSettings(group_initial_rebalance_delay_ms=0)
        self.image = make_image({"t": 4} if topics is None else topics)
        self.prompt = prompt
        self.ms = 0
        self.log: list[Written | Marker] = []
        self.permitted: set[int] = set()
        """Producers whose batches the log takes: those in a transaction that this partition is part of."""
        self.in_flight: Batch | None = None
        self.batches = 0
        self.answers: dict[Ticket, ApiMessage] = {}
        self.wake_at: int | None = None
        self._ids = itertools.count(1)
        self._tickets = itertools.count(1)
        self.shard = self._new_shard()
        self.take(self.shard.loaded(self.now))

    @property
    def now(self) -> Now:
        return Now(self.ms, WALL_START + self.ms)

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.settings, self.image, lambda: str(next(self._ids)))

    # Events

    def ask(self, event: Callable[..., Effects], *arguments: object) -> Ticket:
        """Send a request; its answer, when there is one, is in `answers` under the ticket."""
        ticket = next(self._tickets)
        self.take(event(self.now, ticket, *arguments))
        return ticket

    def asked(self, event: Callable[..., Effects], *arguments: object) -> ApiMessage:
        """Send a request that is answered at once."""
        return self.answers.pop(self.ask(event, *arguments))

    def advance(self, ms: int) -> None:
        """Let time pass, waking the shard when it wants to be woken."""
        until = self.ms + ms
        while self.wake_at is not None and self.wake_at <= until:
            self.ms = max(self.ms, self.wake_at)
            self.take(self.shard.tick(self.now))
        self.ms = until
        self.take(self.shard.tick(self.now))

    def flush(self) -> None:
        """What is on its way becomes durable, if the log takes it."""
        assert self.in_flight is not None, "nothing was written"
        producer = self.in_flight.producer
        if producer is not None and producer.id not in self.permitted:
            self.fail(ErrorCode.INVALID_TXN_STATE)
            return
        self._store()
        self.take(self.shard.durable(self.now))

    def mark(self, producer_id: int, *, committed: bool) -> None:
        """The marker of a transaction is durable, before what is on its way."""
        self.permitted.discard(producer_id)
        self.log.append(Marker(producer_id, committed))
        self.take(self.shard.transaction_ended(self.now, producer_id, committed=committed))

    def fail(self, code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        assert self.in_flight is not None, "nothing was written"
        self.in_flight = None
        self.take(self.shard.failed(self.now, code))

    def set_topics(self, topics: Mapping[str, int], generation: Mapping[str, int] | None = None) -> None:
        old = self.image
        configs = {name: config for (_, name), config in old.configs.items()}
        self.image = make_image(topics, version=old.version + 1, group_configs=configs, generation=generation)
        new = self.image.topics
        changed = {
            name
            for name in {*old.topics, *new}
            if name not in old.topics
            or name not in new
            or (old.topics[name].id, len(old.topics[name].partitions))
            != (new[name].id, len(new[name].partitions))
        }
        removed = any(name not in new or new[name].id != old.topics[name].id for name in old.topics)
        self.take(self.shard.metadata_changed(self.now, self.image, changed, removed=removed))

    def restart(self) -> None:
        """Forget everything that is not in the log: what was on its way is lost, or was never there."""
        self.in_flight = None
        self.wake_at = None
        self.shard = self._new_shard()
        self.load_into(self.shard)
        self.take(self.shard.loaded(self.now))

    def load_into(self, shard: GroupShard) -> None:
        for entry in self.log:
            if isinstance(entry, Marker):
                shard.load_marker(entry.producer_id, committed=entry.committed)
            else:
                shard.load(*entry)

    def take(self, effects: Effects) -> None:
        for ticket, response in effects.answers:
            assert ticket not in self.answers, "answered twice"
            assert isinstance(response, ApiMessage)
            self.answers[ticket] = response
        self.wake_at = effects.wake_at
        if effects.batch is not None:
            assert self.in_flight is None, "two batches at once"
            assert effects.batch.records, "an empty batch"
            self.in_flight = effects.batch
            self.batches += 1
            if self.prompt:
                self.flush()

    def _store(self) -> None:
        assert self.in_flight is not None
        producer = self.in_flight.producer
        producer_id = -1 if producer is None else producer.id
        self.log.extend(Written(r.key, r.value, producer_id) for r in self.in_flight.records)
        self.in_flight = None

    # What is in the log

    def written(self) -> list[tuple[int, Written]]:
        """The records of the log, with their positions."""
        return [(at, entry) for at, entry in enumerate(self.log) if isinstance(entry, Written)]

    def records(self) -> list[tuple[Key, Value | None]]:
        found = (read_record(entry.key, entry.value) for _, entry in self.written())
        return [record for record in found if record is not None]

    def endings(self) -> dict[int, Marker]:
        """By the position of a transactional record: how its transaction ended, if it did."""
        open_records: dict[int, list[int]] = {}
        ended: dict[int, Marker] = {}
        for at, entry in enumerate(self.log):
            if isinstance(entry, Marker):
                ended.update(dict.fromkeys(open_records.pop(entry.producer_id, []), entry))
            elif entry.producer_id >= 0:
                open_records.setdefault(entry.producer_id, []).append(at)
        return ended

    def compact(self) -> None:
        """Up to the first open transaction: drop what was aborted and keep the last record of each key, as
        the cleaner would."""
        ended = self.endings()
        stable = next(
            (at for at, r in self.written() if r.producer_id >= 0 and at not in ended), len(self.log)
        )
        counts = {
            at: record
            for at, record in self.written()
            if at < stable and (record.producer_id < 0 or ended[at].committed)
        }
        last = {record.key: at for at, record in counts.items()}
        self.log = [
            entry
            for at, entry in enumerate(self.log)
            if at >= stable
            or isinstance(entry, Marker)
            or (at in counts and last[entry.key] == at and entry.value is not None)
        ]


def client(name: str) -> Client:
    return Client(name, "/127.0.0.1")


def partitions(found: Iterable[object]) -> dict[bytes, list[int]]:
    return {entry.topic_id: list(entry.partitions) for entry in found}  # type: ignore[attr-defined]
