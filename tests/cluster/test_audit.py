"""The audit of a store: with a broker on it and without, on a directory and with one object per flush."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.client import Client
from penstock.cluster.audit import Audit, Report, Space, space_of
from penstock.cluster.reading import ImageReader, NoClusterError
from penstock.metadata.image import ClusterImage, WalRef
from penstock.node.node import Node
from penstock.settings import Settings, load
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import DatedStore
from penstock.wire.batch import Record, build_batch

DAY_MS = 86_400_000


class World:
    """A cluster of one broker, in this process."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.root = folder / "store"
        self._memory = MemoryStore() if kind == "memory" else None
        self._node: Node | None = None
        self._settings = load(
            ["listeners=PLAINTEXT://127.0.0.1:0", f"store={self.root}", "wal.settle.interval.ms=86400000"]
        )

    def open(self, _settings: Settings | None = None) -> DatedStore:
        return self._memory or DirectoryStore(str(self.root))

    async def start(self) -> Node:
        self._node = node = Node(self._settings, open_store=self.open)
        await node.start()
        return node

    async def kill(self) -> None:
        if self._node is not None:
            await self._node.kill()
            self._node = None

    async def fill(self, node: Node, topic: str, count: int) -> None:
        """Records, some of them settled and some not."""
        host, _, port = node.addresses[0].rpartition(":")

        def make() -> None:
            with Client(f"{host}:{port}") as client:
                client.partitions(topic, create=True)

        await asyncio.to_thread(make)
        found = node.broker.image.topic(topic)
        assert found is not None
        partition = node.broker.ledger.partition(found.id, 0)
        assert partition is not None
        for number in range(count):
            done = asyncio.get_running_loop().create_future()
            batch = build_batch([Record(0, 1_700_000_000_000, None, b"%d" % number * 100)])
            node.broker.ledger.append(partition, batch, done.set_result)
            await asyncio.wait_for(done, 60)
            if number == count // 2:
                assert await node.broker.ledger.settle()

    async def audit(self, *, later_ms: int = 0, delete: bool = False) -> Report:
        """As somebody sees it who looks `later_ms` after now, with an hour of grace."""
        store = self.open()
        now_ms = self._settings_clock_ms() + later_ms
        auditing = Audit(store, now_ms, 3_600_000)
        report = await auditing.run()
        if delete:
            await auditing.delete(report)
        if self._memory is None:
            await store.close()
        return report

    def _settings_clock_ms(self) -> int:
        # Objects in memory are as old as time.
        return 0 if self._memory is not None else time.time_ns() // 1_000_000

    async def image(self) -> ClusterImage:
        return await ImageReader(self.open()).refresh()

    async def keys(self, prefix: str) -> list[str]:
        return [info.key async for info in self.open().list(prefix)]


@pytest.fixture(params=["directory", "memory"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = World(request.param, tmp_path)
    yield made
    await made.kill()


async def test_a_store_without_a_cluster(world: World) -> None:
    with pytest.raises(NoClusterError):
        await world.audit()


async def test_everything_is_needed_and_there(world: World) -> None:
    node = await world.start()
    await world.fill(node, "t", 9)
    running = await world.audit(later_ms=DAY_MS)
    assert not running.missing and not running.orphaned
    assert running.kinds["segments"].referenced == running.kinds["segments"].objects > 0
    assert running.kinds["write-ahead logs"].bytes > 0
    await world.kill()
    killed = await world.audit(later_ms=DAY_MS)
    assert not killed.missing and not killed.orphaned


async def test_what_nothing_refers_to(world: World) -> None:
    node = await world.start()
    await world.fill(node, "t", 9)
    epoch = node.broker.broker_epoch
    orphans = [
        f"manifests/1/{epoch}/999999999999",
        f"segments/1/{epoch}/999999999999",
        "segments/7/1/000000000001",
    ]
    for key in [*orphans, "spark/plan/query/0", "elsewhere/x"]:
        await world.open().create(key, b"left behind")
    young = await world.audit()
    assert [one.key for one in young.in_flight] == orphans and not young.orphaned
    old = await world.audit(later_ms=DAY_MS)
    assert [one.key for one in old.orphaned] == orphans and not old.in_flight
    assert old.kinds["segments"].orphaned == 2 and old.kinds["other"].objects == 2
    assert (await world.audit(delete=True)).deleted == [], "not before their time"
    assert (await world.audit(later_ms=DAY_MS, delete=True)).deleted == orphans
    after = await world.audit(later_ms=DAY_MS)
    assert not after.orphaned and not after.missing and after.kinds["other"].objects == 2


async def test_what_an_unreadable_manifest_may_need_is_not_orphaned(world: World) -> None:
    """Nothing that can be read refers to its segments, which proves nothing."""
    node = await world.start()
    await world.fill(node, "t", 9)
    await world.kill()
    (key,) = await world.keys("manifests/")
    segments = await world.keys("segments/")
    orphan = "segments/7/1/000000000001"
    store = world.open()
    contents = await store.get(key)
    assert contents is not None
    for damage in (contents[:-1] + bytes([contents[-1] ^ 1]), None):
        if damage is None:
            await store.delete(key)
        else:
            await store.put(key, damage)
        await store.create(orphan, b"no segment at all")
        report = await world.audit(later_ms=DAY_MS, delete=True)
        assert [one.key for one in report.unknown] == sorted([*segments, orphan])
        assert not report.orphaned and not report.deleted and report.space is None
        assert [one.key for one in report.missing] == [key]
        assert await world.keys("segments/") == sorted([*segments, orphan])
    await store.create(key, contents)
    assert (await world.audit(later_ms=DAY_MS, delete=True)).deleted == [orphan]
    assert not (await world.audit()).missing


async def test_space_is_told(world: World) -> None:
    node = await world.start()
    await world.fill(node, "t", 9)
    report = await world.audit(later_ms=DAY_MS)
    segments, manifests = report.kinds["segments"].bytes, report.kinds["manifests"].bytes
    found = node.broker.image.topic("t")
    assert found is not None and report.space is not None
    partition = node.broker.ledger.partition(found.id, 0)
    assert partition is not None and partition.manifest is not None
    readable = sum(segment.size_bytes for segment in partition.manifest.segments)
    assert (report.space.readable_bytes, report.space.stored_bytes) == (readable, segments + manifests)
    assert report.space.in_bounds


def test_space_has_a_bound() -> None:
    mb = 1024 * 1024
    assert space_of(0, 0).in_bounds and space_of(0, 0).ratio == 0
    assert space_of(100 * mb, 210 * mb) == Space(100 * mb, 210 * mb, 2.1, True)
    assert not space_of(100 * mb, 300 * mb).in_bounds


async def test_the_log_of_an_incarnation_that_is_over(world: World) -> None:
    node = await world.start()
    await world.fill(node, "t", 9)
    first = node.broker.broker_epoch
    await world.kill()
    node = await world.start()
    needed = await world.audit(later_ms=DAY_MS)
    assert not needed.orphaned and not needed.missing
    assert await node.broker.ledger.settle()
    seals = await world.audit(later_ms=DAY_MS, delete=True)
    # The manifest that was replaced goes with it.
    assert {one.key.rsplit("/", 1)[0] for one in seals.orphaned} == {f"wal/1/{first}", f"manifests/1/{first}"}
    left = [info async for info in world.open().list(f"wal/1/{first}/")]
    assert sum(info.size for info in left) <= 8, "only its seal"
    assert not (await world.audit(later_ms=DAY_MS)).orphaned


@pytest.mark.parametrize("prefix", ["segments/", "manifests/"])
async def test_what_is_needed_and_gone(world: World, prefix: str) -> None:
    node = await world.start()
    await world.fill(node, "t", 9)
    await world.kill()
    (key,) = [key for key in await world.keys(prefix) if not key.endswith(".index")]
    contents = await world.open().get(key)
    assert contents is not None
    await world.open().put(key, contents[: len(contents) // 2])
    (short,) = (await world.audit()).missing
    assert short.key == key
    await world.open().delete(key)
    (gone,) = (await world.audit()).missing
    assert gone.key == key
    await world.open().create(key, contents)
    assert not (await world.audit()).missing


@pytest.mark.parametrize("which", [min, max])
async def test_a_sealed_log_with_a_part_missing(world: World, which: Callable[[list[str]], str]) -> None:
    node = await world.start()
    await world.fill(node, "t", 9)
    epoch = node.broker.broker_epoch
    await world.kill()
    node = await world.start()  # Seals the log of the first.
    await world.kill()
    image = await world.image()
    start = image.wal_starts[WalRef(1, epoch)]
    # Files are named by their first flush; flush n is object n + 1, and the last object is the seal.
    first = start + 1 if isinstance(world.open(), MemoryStore) else start
    names = [key.rsplit("/", 1)[1] for key in await world.keys(f"wal/1/{epoch}/")]
    needed = [name for name in names if name.isdecimal() and int(name) >= first]
    await world.open().delete(f"wal/1/{epoch}/{which(needed)}")
    (missing,) = (await world.audit()).missing
    assert missing.key == f"wal/1/{epoch}/"
