"""A cluster of one broker in this process, whose store tests hurt and heal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.admin.records import Aborted
from penstock.clock import SystemClock
from penstock.cluster.health.findings import Report
from penstock.cluster.health.repair import Repair
from penstock.cluster.health.repair_report import RepairReport
from penstock.cluster.health.scrub import Scrub
from penstock.cluster.reading import ImageReader
from penstock.log.extents import Extents
from penstock.log.manifest import Manifest, SegmentRef, decode_manifest
from penstock.metadata.commands import AnyCommand, CreateTopic
from penstock.metadata.image import ClusterImage, WalRef
from penstock.node.node import Node
from penstock.settings import Settings, load
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.answers import Appended, Slice
from penstock.storage.partitions.partition import Partition
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import DatedStore
from penstock.wire.api.fetch import AbortedTransaction, PartitionData
from penstock.wire.batch import Record, build_batch, iter_batches, iter_records
from tests.storage.world import admitted

TIME_MS = 1_700_000_000_000

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "0",
}

Records = list[tuple[int, bytes | None]]


class Ward:
    def __init__(self, kind: str, folder: Path, *settings: str) -> None:
        self.root = folder / "store"
        self._memory = MemoryStore() if kind == "memory" else None
        self._opened: list[DatedStore] = []
        self.node: Node | None = None
        self._settings = load(
            [
                "listeners=PLAINTEXT://127.0.0.1:0",
                f"store={self.root}",
                "wal.settle.interval.ms=86400000",
                *settings,
            ]
        )

    def open(self, _settings: Settings | None = None) -> DatedStore:
        """Until the next `kill`."""
        self._opened.append(self._memory or DirectoryStore(str(self.root)))
        return self._opened[-1]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[DatedStore]:
        """For a look."""
        store = self._memory or DirectoryStore(str(self.root))
        try:
            yield store
        finally:
            await store.close()

    @property
    def objects(self) -> dict[str, bytes]:
        """All that is stored in memory."""
        return self._memory.objects if self._memory is not None else {}

    @property
    def on_directory(self) -> bool:
        return self._memory is None

    async def start(self) -> Node:
        self.node = node = Node(self._settings, open_store=self.open)
        await node.start()
        return node

    async def kill(self) -> None:
        """The end of the broker, and of all others that have opened its store."""
        if self.node is not None:
            await self.node.kill()
            self.node = None
        while self._opened:
            await self._opened.pop().close()

    def leave_presence(self, wal: WalRef) -> None:
        """As a process that was killed leaves it: a file that nobody holds a lock on."""
        if self.on_directory:
            (self.root / "presence").mkdir(exist_ok=True)
            (self.root / "presence" / f"{wal.broker}-{wal.epoch}").touch()

    @property
    def ledger(self) -> Ledger:
        assert self.node is not None
        return self.node.broker.ledger

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        assert self.node is not None
        topic_id = topic.encode().ljust(16, b"*")[:16]
        command = CreateTopic(topic_id, topic, ((self.node.broker.broker_id,),) * partitions, configs)
        await self.propose(command)

    async def propose(self, command: AnyCommand) -> None:
        assert self.node is not None
        answer = await self.node.broker.metadata.propose(lambda _image: (command,))
        assert isinstance(answer, ClusterImage), answer

    def partition(self, topic: str, index: int = 0) -> Partition:
        assert self.node is not None
        found = self.node.broker.image.topic(topic)
        assert found is not None
        partition = self.ledger.partition(found.id, index)
        assert partition is not None
        return partition

    async def caught_up(self) -> None:
        """Until the broker goes on from the manifests that the log names."""
        assert self.node is not None
        image = await self.node.broker.metadata.catch_up()
        while True:
            refs = {
                (topic.name, at): info.manifest
                for topic in image.topics.values()
                for at, info in enumerate(topic.partitions)
            }
            if all(self.partition(*place).manifest_ref == ref for place, ref in refs.items()):
                return
            await asyncio.sleep(0.01)

    async def write(self, topic: str, index: int, *batches: list[bytes]) -> None:
        """Batches of values, each a flush of its own."""
        for values in batches:
            records = [Record(at, TIME_MS + at, b"k%d" % at, value) for at, value in enumerate(values)]
            await self.append(topic, index, build_batch(records))

    async def append(self, topic: str, index: int, *batches: bytearray) -> None:
        """Batches as they are, each a flush of its own."""
        for batch in batches:
            done = asyncio.get_running_loop().create_future()
            self.ledger.append(self.partition(topic, index), admitted(batch), done.set_result)
            answer = await asyncio.wait_for(done, 60)
            assert isinstance(answer, Appended), answer

    async def fill(self) -> None:
        """Start with two topics, some of whose records are settled and some not."""
        await self.start()
        await self.create("orders", 2)
        await self.create("other")
        for index in (0, 1):
            await self.write("orders", index, *([b"%d-%d" % (index, n) * 20, b"x"] for n in range(6)))
        await self.write("other", 0, [b"a" * 100] * 5)
        assert await self.ledger.settle()
        await self.write("orders", 0, *([b"late-%d" % n * 20] for n in range(5)))
        await self.write("other", 0, [b"b" * 50] * 3, [b"c"])

    async def clean(self) -> None:
        """As soon as what was written is a millisecond old, which is what COMPACTED asks for."""
        async with asyncio.timeout(60):
            while not await self.ledger.clean():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def read(self, topic: str, index: int = 0) -> Records:
        """Every record, from the store and not from memory."""
        ledger, partition = self.ledger, self.partition(topic, index)
        found: Records = []
        offset = partition.log_start_offset
        while offset < partition.high_watermark:
            answer = ledger._reader._read_stored(partition, offset, 4096, partition.high_watermark)
            part = answer if isinstance(answer, Slice) else await answer
            joined = b"".join(part.buffers)
            for position, _header in iter_batches(joined):
                found += ((one.offset, one.value) for one in iter_records(joined, position))
            if part.next_offset == offset:
                break
            offset = part.next_offset
        return found

    async def read_committed(self, topic: str, index: int = 0) -> Records:
        """As a consumer at read_committed does: by the list of aborted transactions and the markers."""
        partition = self.partition(topic, index)
        end = partition.last_stable_offset
        answer = self.ledger._reader._read_stored(partition, partition.log_start_offset, 1 << 20, end)
        part = answer if isinstance(answer, Slice) else await answer
        assert part.next_offset == end
        joined = b"".join(part.buffers)
        listed = partition.aborted_transactions(partition.log_start_offset, end)
        told = [AbortedTransaction(one.producer_id, one.first_offset) for one in listed]
        aborted = Aborted(PartitionData(aborted_transactions=told))
        found: Records = []
        for position, header in iter_batches(joined):
            if not aborted.skips(header, joined, position):
                found += ((one.offset, one.value) for one in iter_records(joined, position))
        return found

    async def scrub(self, *topics: str) -> Report:
        async with self.opened() as store:
            return await Scrub(store, topics=topics).run()

    async def repair(self, *, apply: bool = True, cut: bool = False) -> RepairReport:
        async with self.opened() as store:
            return await Repair(store, SystemClock(), apply=apply, cut=cut).run()

    async def image(self) -> ClusterImage:
        async with self.opened() as store:
            return await ImageReader(store).refresh()

    async def keys(self, prefix: str) -> list[str]:
        async with self.opened() as store:
            return [info.key async for info in store.list(prefix)]

    async def directories(self) -> list[str]:
        """All there are, the store itself too, each with a slash at its end."""
        if self._memory is None:
            paths = [path for path in self.root.rglob("*") if path.is_dir()]
            return ["", *(f"{path.relative_to(self.root)}/" for path in paths)]
        names = [key.split("/")[:-1] for key in await self.keys("")]
        return sorted({"".join(f"{part}/" for part in name[:depth]) for name in names for depth in range(4)})

    async def leave(self, key: str, contents: bytes) -> None:
        """A file, or an object, of somebody else, whose name need not be a key."""
        if self._memory is not None:
            self._memory.objects[key] = contents
            return
        path = self.root / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents)

    async def get(self, key: str) -> bytes:
        async with self.opened() as store:
            found = await store.get(key)
        assert found is not None
        return found

    async def manifest(self, topic: str, index: int = 0) -> Manifest:
        ref = (await self.image()).topics[topic].partitions[index].manifest
        assert ref is not None
        return decode_manifest((await self.get(ref.key))[ref.start : ref.start + ref.length])

    async def extents(self, segment: SegmentRef) -> Extents:
        stored = await self.get(segment.index_key)
        return Extents.decode(stored[segment.index_start : segment.index_start + segment.index_length])

    async def overwrite(self, key: str, at: int, contents: bytes) -> None:
        stored = bytearray(await self.get(key))
        stored[at : at + len(contents)] = contents
        await self.change(key, bytes(stored))

    async def change(self, key: str, contents: bytes) -> None:
        """What is stored under a key becomes this, in place."""
        if self._memory is not None:
            await self._memory.put(key, contents)
        else:
            with open(self.root / key, "r+b") as file:
                file.write(contents)
                file.truncate()

    async def flip(self, key: str, at: int, bit: int = 0) -> None:
        stored = bytearray(await self.get(key))
        stored[at] ^= 1 << bit
        await self.change(key, bytes(stored))
