"""What storage tests live in: a metadata log in memory, a clock that tests move, brokers that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from penstock.log.guards import NOT_ASKED, GuardedBatch
from penstock.log.policy import DEFAULT_POLICY, LogPolicy
from penstock.metadata.apply import apply_entry
from penstock.metadata.commands import AnyCommand, CreateTopic, DeleteTopic, FenceBroker, RegisterBroker
from penstock.metadata.image import ClusterImage, Listener, WalRef
from penstock.metadata.preconditions import check
from penstock.metadata.refusal import Refusal
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.answers import Appended, Slice
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.settings import CleanerSettings, LedgerSettings
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.objects import ObjectStore
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.objects import ObjectWalStore
from penstock.storage.wal.port import WalStore
from penstock.wire.batch import (
    CONTROL,
    TRANSACTIONAL,
    Record,
    build_batch,
    iter_batches,
    iter_records,
    read_header,
)
from penstock.wire.errors import ErrorCode
from tests.clocks import HandClock

LISTENERS = (Listener("PLAINTEXT", "127.0.0.1", 9092),)
QUIET = LedgerSettings(
    settle_interval_ms=10**9, settle_bytes=1 << 50, settle_extents=1 << 50, retention_check_interval_ms=10**9
)
"""Nothing happens in the background."""


class Metadata:
    """The metadata log, without a store: decides and applies with the real rules."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.commands: list[AnyCommand] = []
        self.subscribers: list[Callable[[ClusterImage, ClusterImage], None]] = []
        self.fail: Exception | None = None

    async def propose(
        self, decide: Callable[[ClusterImage], Sequence[AnyCommand] | Refusal]
    ) -> ClusterImage | Refusal:
        if self.fail is not None:
            raise self.fail
        commands = decide(self.image)
        if isinstance(commands, Refusal):
            return commands
        for command in commands:
            refusal = check(self.image, command)
            if refusal is not None:
                return refusal
        if commands:
            self.commands += commands
            old, self.image = self.image, apply_entry(self.image, commands)
            for subscriber in list(self.subscribers):
                subscriber(old, self.image)
        return self.image

    async def change(self, *commands: AnyCommand) -> ClusterImage:
        image = await self.propose(lambda _image: commands)
        assert isinstance(image, ClusterImage), image
        return image


def open_wals(store: ObjectStore, **options: Any) -> WalStore:
    if isinstance(store, DirectoryStore):
        return DirectoryWalStore(store, **options)
    return ObjectWalStore(store)


class WorldPolicies:
    """What a test set, and the defaults."""

    def __init__(self, world: World) -> None:
        self._world = world

    def of(self, image: ClusterImage, topic: str) -> LogPolicy:
        return self._world.policies.get(topic, DEFAULT_POLICY)

    def cleaner(self, image: ClusterImage) -> CleanerSettings:
        return self._world.cleaner


class World:
    """One store and one metadata log; `start` registers a broker as main does."""

    def __init__(self, store: ObjectStore, wal_store: WalStore | None = None) -> None:
        self.store = store
        self.wal_store = wal_store or open_wals(store)
        self.metadata = Metadata()
        self.clock = HandClock()
        self.policies: dict[str, LogPolicy] = {}
        self.cleaner = CleanerSettings(enable=False)
        """Compaction runs when a test asks for it."""
        self.ledgers: list[Ledger] = []
        self.ended: list[str] = []

    async def start(self, broker: int = 1, settings: LedgerSettings = QUIET) -> Ledger:
        """A new incarnation: seals the one before it, registers, recovers."""
        known = self.metadata.image.brokers.get(broker)
        previous, sealed = -1, None
        if known is not None:
            previous = known.epoch
            if not known.fenced:
                sealed = await self.seal(known.wal)
        image = await self.metadata.change(
            RegisterBroker(broker, LISTENERS, previous_epoch=previous, sealed=sealed)
        )
        ledger = Ledger(
            Holdings(
                image.brokers[broker].wal,
                self.store,
                self.wal_store,
                settings,
                self.clock,
                self.metadata.propose,
            ),
            WorldPolicies(self),
            on_end=self.ended.append,
        )
        await ledger.open(self.metadata.image)
        self.metadata.subscribers.append(ledger.follow)
        self.ledgers.append(ledger)
        return ledger

    async def seal(self, wal: WalRef) -> int:
        """As a broker does it whose image is the newest."""
        return await self.wal_store.seal(wal, self.metadata.image.wal_starts.get(wal, 0))

    async def fence(self, broker: int) -> None:
        info = self.metadata.image.brokers[broker]
        count = await self.seal(info.wal)
        await self.metadata.change(FenceBroker(broker, info.epoch, count))

    def forget(self, ledger: Ledger) -> None:
        """The ledger's process is gone: it hears of nothing any more."""
        if ledger.follow in self.metadata.subscribers:
            self.metadata.subscribers.remove(ledger.follow)

    async def kill(self, ledger: Ledger) -> None:
        """As kill -9 does: what the operating system has stays, nothing else happens."""
        self.forget(ledger)
        self.ledgers.remove(ledger)
        for task in (ledger._upkeep_task, *ledger._takeover._tasks, ledger._cleaner_task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if ledger._writer is not None:
            await ledger._writer.close()

    async def create_topic(self, name: str, partitions: int = 1, brokers: tuple[int, ...] = (1,)) -> bytes:
        topic_id = name.encode().ljust(16, b"*")[:16]
        await self.metadata.change(CreateTopic(topic_id, name, tuple(brokers for _ in range(partitions))))
        return topic_id

    async def delete_topic(self, topic_id: bytes) -> None:
        await self.metadata.change(DeleteTopic(topic_id))

    async def close(self) -> None:
        for ledger in self.ledgers:
            self.forget(ledger)
            await ledger.close()
        await self.wal_store.close()
        await self.store.close()


def batch(
    *values: bytes,
    timestamp: int = 1_700_000_000_000,
    timestamps: Sequence[int] | None = None,
    **options: Any,
) -> bytearray:
    """A batch as a producer sends it."""
    times = timestamps or [timestamp] * len(values)
    records = [Record(at, times[at], b"k%d" % at, value) for at, value in enumerate(values)]
    return build_batch(records, **options)


def admitted(data: bytearray) -> bytearray:
    """The batch as if the coordinator of its transaction, if it has one, had let it in."""
    header = read_header(data)
    if header.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
        return GuardedBatch.of(data, NOT_ASKED)
    return data


async def append(ledger: Ledger, partition: Partition, *batches: bytearray) -> list[Appended | ErrorCode]:
    """Append batches in one turn of the loop; their answers, in that order."""
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[Appended | ErrorCode]] = []
    for one in batches:
        answer: asyncio.Future[Appended | ErrorCode] = loop.create_future()
        answers.append(answer)
        ledger.append(partition, admitted(one), answer.set_result)
    return await asyncio.wait_for(asyncio.gather(*answers), 60)


async def append_ok(ledger: Ledger, partition: Partition, *batches: bytearray) -> list[int]:
    """Append, and expect success: the base offsets."""
    offsets = []
    for answer in await append(ledger, partition, *batches):
        assert isinstance(answer, Appended), answer
        offsets.append(answer.base_offset)
    return offsets


async def read(
    ledger: Ledger, partition: Partition, offset: int, max_bytes: int = 1 << 20, limit: int | None = None
) -> Slice:
    limit = partition.high_watermark if limit is None else limit
    answer = ledger.read(partition, offset, max_bytes, limit_offset=limit)
    return answer if isinstance(answer, Slice) else await answer


async def read_all(ledger: Ledger, partition: Partition, max_bytes: int = 4096) -> list[tuple[int, bytes]]:
    """Every record from the log start on: offset and value."""
    found: list[tuple[int, bytes]] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        part = await read(ledger, partition, offset, max_bytes)
        assert part.size == sum(map(len, part.buffers))
        assert part.next_offset > offset, "a read must make progress"
        for position, header in iter_batches(b"".join(part.buffers)):
            joined = b"".join(part.buffers)
            assert header.leader_epoch >= 0
            for record in iter_records(joined, position):
                if record.offset >= offset:
                    assert record.value is not None
                    found.append((record.offset, record.value))
        offset = part.next_offset
    return found


def own_partition(ledger: Ledger, topic_id: bytes, index: int = 0) -> Partition:
    partition = ledger.partition(topic_id, index)
    assert partition is not None
    return partition


async def keys_of(store: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix)]


def wal_of(ledger: Ledger) -> WalRef:
    return ledger.wal
