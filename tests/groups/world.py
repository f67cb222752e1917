"""A shard with a clock, a store and a cluster that a test holds in its hand.

Nothing becomes durable and no time passes unless the test says so. The store keeps what was written, so a
test can throw the shard away and load another from it: a coordinator that moved, or came back after kill -9.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from penstock.groups.core import Client
from penstock.groups.records import Key, Value, read_record
from penstock.groups.shard import GroupShard
from penstock.metadata.image import GROUP_CONFIG, ClusterImage, PartitionInfo, TopicInfo, derive
from penstock.settings.groups import GroupSettings
from penstock.shards.shard import Batch, Effects, Now, Ticket
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ApiMessage

WALL_START = 1_700_000_000_000


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
        self.log: list[tuple[bytes, bytes | None, int]] = []
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
        """What is on its way becomes durable."""
        assert self.in_flight is not None, "nothing was written"
        self._store()
        self.take(self.shard.durable(self.now))

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
        for key, value, producer_id in self.log:
            self.shard.load(key, value, producer_id)
        self.take(self.shard.loaded(self.now))

    def take(self, effects: Effects) -> None:
        for ticket, response in effects.answers:
            assert ticket not in self.answers, "answered twice"
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
        self.log.extend((r.key, r.value, producer_id) for r in self.in_flight.records)
        self.in_flight = None

    # What is in the log

    def records(self) -> list[tuple[Key, Value | None]]:
        return [found for key, value, _ in self.log if (found := read_record(key, value)) is not None]

    def compact(self) -> None:
        """Keep the last record of each key, as the cleaner would."""
        last = {key: at for at, (key, _, _) in enumerate(self.log)}
        self.log = [
            entry for at, entry in enumerate(self.log) if last[entry[0]] == at and entry[1] is not None
        ]


def client(name: str) -> Client:
    return Client(name, "/127.0.0.1")


def partitions(found: Iterable[object]) -> dict[bytes, list[int]]:
    return {entry.topic_id: list(entry.partitions) for entry in found}  # type: ignore[attr-defined]
