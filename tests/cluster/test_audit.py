"""The audit of a store: with a broker on it and without, on a directory and with one object per flush."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.cluster.audit import Audit, Report
from penstock.cluster.reading import NoClusterError
from penstock.cluster.space import Space, space_of
from penstock.metadata.image import ClusterImage, WalRef
from penstock.metadata.proposing import Decide
from penstock.metadata.refusal import Refusal
from penstock.node.node import Node
from tests.cluster.ward import Ward

DAY_MS = 86_400_000


class World(Ward):
    async def begin(self) -> Node:
        """Start with a topic, some of whose records are settled and some not."""
        node = await self.start()
        await self.create("t")
        batches = [[b"%d" % number * 100] for number in range(9)]
        await self.write("t", 0, *batches[:5])
        assert await self.ledger.settle()
        await self.write("t", 0, *batches[5:])
        return node

    async def audit(self, *, later_ms: int = 0, delete: bool = False) -> Report:
        """As somebody sees it who looks `later_ms` after now, with an hour of grace."""
        # Objects in memory are as old as time.
        now_ms = time.time_ns() // 1_000_000 if self.on_directory else 0
        async with self.opened() as store:
            auditing = Audit(store, now_ms + later_ms, 3_600_000)
            report = await auditing.run()
            if delete:
                await auditing.delete(report)
        return report


@pytest.fixture(params=["directory", "memory"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    made = World(request.param, tmp_path)
    yield made
    await made.kill()


async def test_a_store_without_a_cluster(world: World) -> None:
    with pytest.raises(NoClusterError):
        await world.audit()


async def test_everything_is_needed_and_there(world: World) -> None:
    await world.begin()
    running = await world.audit(later_ms=DAY_MS)
    assert not running.missing and not running.orphaned
    assert running.kinds["segments"].referenced == running.kinds["segments"].objects > 0
    assert running.kinds["write-ahead logs"].bytes > 0
    await world.kill()
    killed = await world.audit(later_ms=DAY_MS)
    assert not killed.missing and not killed.orphaned


async def test_what_nothing_refers_to(world: World) -> None:
    node = await world.begin()
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


async def test_what_a_broker_has_yet_to_commit_is_in_flight_at_any_age(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine of a broker is suspended between the writing of a segment and its entry in the log."""
    node = await world.begin()
    before = set(await world.keys("segments/") + await world.keys("manifests/"))
    propose = node.broker.metadata.propose
    audited: list[Report] = []

    async def sleep_for_a_day(decide: Decide) -> ClusterImage | Refusal:
        audited.append(await world.audit(later_ms=DAY_MS, delete=True))
        return await propose(decide)

    monkeypatch.setattr(world.ledger._settler._committer, "_propose", sleep_for_a_day)
    assert await world.ledger.settle()
    monkeypatch.undo()
    (report,) = audited
    written = set(await world.keys("segments/") + await world.keys("manifests/")) - before
    assert written and {one.key for one in report.in_flight} == written
    assert not report.orphaned and not report.deleted
    assert not (await world.audit()).missing
    await world.kill()
    await world.start()
    assert await world.read("t") == [(number, b"%d" % number * 100) for number in range(9)]


async def test_what_an_unreadable_manifest_may_need_is_not_orphaned(world: World) -> None:
    """Nothing that can be read refers to its segments, which proves nothing."""
    await world.begin()
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
    await world.begin()
    report = await world.audit(later_ms=DAY_MS)
    segments, manifests = report.kinds["segments"].bytes, report.kinds["manifests"].bytes
    partition = world.partition("t")
    assert report.space is not None and partition.manifest is not None
    readable = sum(segment.size_bytes for segment in partition.manifest.segments)
    assert (report.space.readable_bytes, report.space.stored_bytes) == (readable, segments + manifests)
    assert report.space.in_bounds


def test_space_has_a_bound() -> None:
    mb = 1024 * 1024
    assert space_of(0, 0).in_bounds and space_of(0, 0).ratio == 0
    assert space_of(100 * mb, 210 * mb) == Space(100 * mb, 210 * mb, 2.1, True)
    assert not space_of(100 * mb, 300 * mb).in_bounds


async def test_the_log_of_an_incarnation_that_is_over(world: World) -> None:
    node = await world.begin()
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
    await world.begin()
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
    node = await world.begin()
    epoch = node.broker.broker_epoch
    await world.kill()
    node = await world.start()  # Seals the log of the first.
    await world.kill()
    image = await world.image()
    start = image.wal_starts[WalRef(1, epoch)]
    # Files are named by their first flush; flush n is object n + 1, and the last object is the seal.
    first = start if world.on_directory else start + 1
    names = [key.rsplit("/", 1)[1] for key in await world.keys(f"wal/1/{epoch}/")]
    needed = [name for name in names if name.isdecimal() and int(name) >= first]
    await world.open().delete(f"wal/1/{epoch}/{which(needed)}")
    (missing,) = (await world.audit()).missing
    assert missing.key == f"wal/1/{epoch}/"
