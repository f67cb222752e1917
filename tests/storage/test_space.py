"""Space comes back: the store holds about twice what can be read, whatever lives beside what."""

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from penstock.log import moving as plan
from penstock.log.manifest import Manifest, SegmentRef
from penstock.log.moving import footprint
from penstock.log.policy import LogPolicy
from penstock.metadata.commands import AssignLeaders, LeaderMove
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.settling.change import Change
from penstock.storage.settling.segment_writer import Attempt
from penstock.storage.settling.usage import Usage
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.wire.batch import Record, build_batch
from tests.storage.test_settling import NO_DELAY, PROMPT, collect, fill, forget_tails
from tests.storage.world import World, append_ok, batch, keys_of, own_partition, read_all

AT_ONCE = msgspec.structs.replace(PROMPT, settle_interval_ms=0, retention_check_interval_ms=0)
"""Whatever may be due is due at each step."""
ROUND_MS = 10_000
SLACK_BYTES = 2 * 1024 * 1024
"""What is not worth a command in the metadata log, and the manifests."""


async def stored_bytes(world: World, *prefixes: str) -> int:
    return sum([info.size for prefix in prefixes async for info in world.store.list(prefix)])


def readable_bytes(ledger: Ledger) -> int:
    return sum(partition.size_bytes for partition in ledger._partitions.values())


async def stop_background(ledger: Ledger) -> None:
    assert ledger._upkeep_task is not None
    ledger._upkeep_task.cancel()
    await asyncio.gather(ledger._upkeep_task, return_exceptions=True)


async def a_round(world: World, ledger: Ledger) -> None:
    """Ten seconds in which the background does all it wants to."""
    world.clock.advance(ROUND_MS)
    assert ledger._upkeep is not None
    for _ in range(4):
        await ledger._upkeep.step()


async def check_space(world: World, ledger: Ledger) -> float:
    """What is stored, as a multiple of what can be read."""
    stored = await stored_bytes(world, "segments/", "manifests/")
    readable = readable_bytes(ledger)
    assert stored <= 2.25 * readable + SLACK_BYTES, (stored, readable)
    counters = ledger.counters()
    assert counters["readable_bytes"] == readable
    assert counters["stored_bytes"] == await stored_bytes(world, "segments/")
    return stored / readable


async def test_a_busy_topic_with_retention_beside_many_slow_ones() -> None:
    world = World(MemoryStore())
    rng = random.Random(1)
    world.policies["busy"] = LogPolicy(
        retention_bytes=4_000_000, segment_bytes=1_000_000, file_delete_delay_ms=0
    )
    ledger = await world.start(settings=AT_ONCE)
    busy = own_partition(ledger, await world.create_topic("busy"))
    slow = []
    for number in range(150):
        world.policies[f"slow{number}"] = NO_DELAY
        slow.append(own_partition(ledger, await world.create_topic(f"slow{number}")))
    counts = [0] * 150
    for _ in range(80):
        for _ in range(5):
            await append_ok(ledger, busy, batch(rng.randbytes(100_000)))
        for number in rng.sample(range(150), 15):
            await append_ok(ledger, slow[number], batch(b"now and then"))
            counts[number] += 1
        await a_round(world, ledger)
        await check_space(world, ledger)
    assert ledger.counters()["moved_bytes"] <= 80 * 500_000, "a byte is moved about once"
    forget_tails(ledger)
    for partition, count in zip(slow, counts, strict=True):
        assert len(await read_all(ledger, partition)) == count
    await world.close()


async def test_groups_that_come_and_go_beside_a_busy_topic() -> None:
    """Offsets of short-lived groups, compacted, in partitions that share objects with each other."""
    world = World(MemoryStore())
    rng = random.Random(2)
    world.policies["offsets"] = LogPolicy(
        compact=True, delete=False, segment_ms=0, file_delete_delay_ms=0, delete_retention_ms=0
    )
    world.policies["busy"] = LogPolicy(retention_ms=30_000, file_delete_delay_ms=0)
    ledger = await world.start(settings=AT_ONCE)
    topic = await world.create_topic("offsets", 50)
    offsets = [own_partition(ledger, topic, index) for index in range(50)]
    busy = own_partition(ledger, await world.create_topic("busy"))
    groups: dict[int, list[bytes]] = {}
    for number in range(60):
        now_ms = world.clock.time_ms()
        await append_ok(ledger, busy, batch(rng.randbytes(60_000), timestamp=now_ms))
        for _ in range(10):
            at = rng.randrange(50)
            name = b"group-%d" % rng.randrange(1_000_000)
            keys = [name + b"/%d" % part for part in range(20)]
            groups.setdefault(number, []).extend(keys)
            records = [Record(i, now_ms, key, os.urandom(200)) for i, key in enumerate(keys)]
            for _ in range(5):  # Each commits a few times, and then goes.
                await append_ok(ledger, offsets[at], build_batch(records))
            gone = [Record(i, now_ms, key, None) for i, key in enumerate(keys)]
            await append_ok(ledger, offsets[at], build_batch(gone))
        await a_round(world, ledger)
        await ledger.clean()
        await a_round(world, ledger)
        await check_space(world, ledger)
    await world.close()


async def test_what_lives_in_a_dead_object_is_moved_and_reads_the_same(world: World) -> None:
    world.policies["t"] = world.policies["u"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    await stop_background(ledger)
    t, u = await world.create_topic("t"), await world.create_topic("u")
    for number in range(20):
        for _ in range(10):
            await append_ok(ledger, own_partition(ledger, t), batch(os.urandom(50_000)))
        await append_ok(ledger, own_partition(ledger, u), batch(b"%d" % number))
        await ledger.settle()
    expected = await read_all(ledger, own_partition(ledger, u))
    before = own_partition(ledger, u).manifest
    await world.delete_topic(t)
    assert await ledger._mover.move()
    assert not await ledger._mover.move(), "what was moved is moved no more"
    await collect(ledger)
    after = own_partition(ledger, u).manifest
    assert before is not None and after is not None and before.segments != after.segments
    assert {segment.key for segment in after.segments} | {s.index_key for s in after.segments} == set(
        await keys_of(world.store, "segments/")
    )
    assert await stored_bytes(world, "segments/") < 100_000
    forget_tails(ledger)
    assert await read_all(ledger, own_partition(ledger, u)) == expected
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    assert await read_all(ledger, own_partition(ledger, u)) == expected


async def test_sizes_that_old_manifests_do_not_tell_are_found_out(world: World) -> None:
    """What was written before sizes were kept is moved like anything else."""
    world.policies["t"] = world.policies["u"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    await stop_background(ledger)
    t, u = await world.create_topic("t"), await world.create_topic("u")
    for _ in range(10):
        for _ in range(5):
            await append_ok(ledger, own_partition(ledger, t), batch(os.urandom(100_000)))
        await fill(ledger, own_partition(ledger, u), 1)
        await ledger.settle()
    partition = own_partition(ledger, u)
    assert partition.manifest is not None
    old = msgspec.structs.replace(
        partition.manifest,
        segments=tuple(
            msgspec.structs.replace(segment, object_bytes=-1) for segment in partition.manifest.segments
        ),
    )
    ledger._garbage.forget(partition.manifest)
    ledger._garbage.hold(old)
    partition.manifest = old
    await world.delete_topic(t)
    assert await ledger._mover.move()
    await collect(ledger)
    assert await stored_bytes(world, "segments/") < 100_000
    assert len(await read_all(ledger, partition)) == 10


async def test_each_leader_moves_its_own_share() -> None:
    """Objects that partitions of two brokers are in, and mostly those of a deleted topic were."""
    world = World(MemoryStore())
    world.policies["t"] = world.policies["u"] = world.policies["dead"] = NO_DELAY
    first, second = await world.start(1, PROMPT), await world.start(2, PROMPT)
    for ledger in (first, second):
        await stop_background(ledger)
    dead, t, u = [await world.create_topic(name) for name in ("dead", "t", "u")]
    for _ in range(10):
        for _ in range(5):
            await append_ok(first, own_partition(first, dead), batch(os.urandom(100_000)))
        for topic in (t, u):
            await fill(first, own_partition(first, topic), 1)
        await first.settle()
    old = own_partition(first, u)
    refs = await first.surrender([(u, 0)])
    move = LeaderMove(u, 0, old.leader_epoch, 2, settled=True, manifest=refs[u, 0].manifest)
    await world.metadata.change(AssignLeaders(1, first.wal.epoch, (move,)))
    await second.update(world.metadata.image)
    await world.delete_topic(dead)
    for ledger in (first, second):
        await collect(ledger)
    assert await stored_bytes(world, "segments/") > 5_000_000
    for ledger in (first, second):
        await ledger._mover.move()
    for ledger in (first, second):
        await collect(ledger)
        world.clock.advance(60_000)
    assert await stored_bytes(world, "segments/") < 100_000
    forget_tails(first)
    assert len(await read_all(first, own_partition(first, t))) == 10
    assert len(await read_all(second, own_partition(second, u))) == 10
    await world.close()


async def test_leaders_that_change_move_nothing_that_is_alive() -> None:
    """Each of two has less than half of every object, and together they need all of it."""
    world = World(MemoryStore())
    first, second = await world.start(1, PROMPT), await world.start(2, PROMPT)
    for ledger in (first, second):
        await stop_background(ledger)
    topic = await world.create_topic("t", 10)
    for _ in range(10):
        for index in range(10):
            await append_ok(first, own_partition(first, topic, index), batch(os.urandom(50_000)))
        await first.settle()
    partitions = [own_partition(first, topic, index) for index in range(5, 10)]
    refs = await first.surrender([(topic, one.index) for one in partitions])
    moves = tuple(
        LeaderMove(
            topic, one.index, one.leader_epoch, 2, settled=True, manifest=refs[topic, one.index].manifest
        )
        for one in partitions
    )
    await world.metadata.change(AssignLeaders(1, first.wal.epoch, moves))
    await second.update(world.metadata.image)
    for ledger in (first, second):
        for _ in range(20):
            await ledger._mover.move()
        assert not ledger.counters()["moved_bytes"]
    await world.close()


async def test_what_another_leader_lets_go_of_comes_back_soon() -> None:
    """An object was alive by what another leader needed of it when this one looked."""
    world = World(MemoryStore())
    world.policies["large"] = world.policies["small"] = NO_DELAY
    first, second = await world.start(1, PROMPT), await world.start(2, PROMPT)
    for ledger in (first, second):
        await stop_background(ledger)
    large, small = [await world.create_topic(name) for name in ("large", "small")]
    for _ in range(10):
        for _ in range(5):
            await append_ok(first, own_partition(first, large), batch(os.urandom(100_000)))
        await fill(first, own_partition(first, small), 1)
        await first.settle()
    old = own_partition(first, large)
    refs = await first.surrender([(large, 0)])
    move = LeaderMove(large, 0, old.leader_epoch, 2, settled=True, manifest=refs[large, 0].manifest)
    await world.metadata.change(AssignLeaders(1, first.wal.epoch, (move,)))
    await second.update(world.metadata.image)
    for _ in range(20):
        await first._mover.move()
    assert not first.counters()["moved_bytes"]
    await world.delete_topic(large)
    world.clock.advance(30_000)
    assert await first._mover.move()
    for ledger in (second, first):
        await collect(ledger)
    assert await stored_bytes(world, "segments/") < 100_000
    await world.close()


async def test_a_topic_that_is_deleted_while_it_is_handed_over_leaves_nothing(world: World) -> None:
    world.policies["t"] = world.policies["u"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    await stop_background(ledger)
    t, u = await world.create_topic("t"), await world.create_topic("u")
    for topic in (t, u):
        await fill(ledger, own_partition(ledger, topic), 3)
    committer = ledger._settler._committer
    write = committer.with_refs

    async def write_slowly(changes: Sequence[Change], attempt: Attempt) -> list[Change]:
        written = await write(changes, attempt)
        await world.delete_topic(t)
        return written

    committer.with_refs = write_slowly  # type: ignore[method-assign]
    surrendered = await ledger.surrender([(t, 0), (u, 0)])
    assert list(surrendered) == [(u, 0)]
    ledger.resume([(u, 0)])
    assert not ledger._garbage.attempts
    await collect(ledger)
    assert not await keys_of(world.store, "segments/") and not await keys_of(world.store, "manifests/")


async def test_an_adopted_file_is_emptied_too(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    world = World(store, DirectoryWalStore(store, file_bytes=2 * 1024 * 1024))
    world.policies["t"] = world.policies["u"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    await stop_background(ledger)
    t, u = await world.create_topic("t"), await world.create_topic("u")
    for number in range(60):
        await append_ok(ledger, own_partition(ledger, t), batch(os.urandom(100_000)))
        if number % 7 == 0:
            await append_ok(ledger, own_partition(ledger, u), batch(b"%d" % number))
    await ledger.settle()
    assert ledger.counters()["files_adopted"] >= 2
    expected = await read_all(ledger, own_partition(ledger, u))
    await world.delete_topic(t)
    assert await ledger._mover.move()
    await collect(ledger)
    assert await stored_bytes(world, "segments/") < 100_000
    forget_tails(ledger)
    assert await read_all(ledger, own_partition(ledger, u)) == expected
    await world.close()


async def test_a_rotten_object_does_not_keep_others_from_being_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "_WORTH_BYTES", 10_000)
    world = World(MemoryStore())
    world.policies["dead"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    dead = await world.create_topic("dead")
    topics = []
    for number in range(8):
        world.policies[f"t{number}"] = NO_DELAY
        topics.append(await world.create_topic(f"t{number}"))
        for _ in range(5):
            await append_ok(ledger, own_partition(ledger, dead), batch(os.urandom(100_000)))
        await fill(ledger, own_partition(ledger, topics[-1]), 2)
        await ledger.settle()
    assert isinstance(world.store, MemoryStore)
    rotten = (await keys_of(world.store, "segments/"))[3]
    await world.delete_topic(dead)
    whole = world.store.objects.pop(rotten)
    for _ in range(20):
        await ledger._mover.move()
        await collect(ledger)
    assert await stored_bytes(world, "segments/") < 100_000
    world.store.objects[rotten] = whole
    forget_tails(ledger)
    for topic in topics:
        assert len(await read_all(ledger, own_partition(ledger, topic))) == 2
    await world.close()


async def test_manifests_are_moved_out_of_dead_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_WORTH_BYTES", 10_000)
    world = World(MemoryStore())
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    await stop_background(ledger)
    topic = await world.create_topic("t", 100)
    # Each settling touches all that are left, and one of them for the last time.
    for first in range(99):
        for index in range(first, 100):
            await append_ok(ledger, own_partition(ledger, topic, index), batch(b"x"))
        await ledger.settle()
        await collect(ledger)
    assert len(await keys_of(world.store, "manifests/")) == 99
    world.clock.advance(60_000)
    assert await ledger._mover.move_manifests()
    await collect(ledger)
    live = sum(p.manifest_ref.length for p in ledger._partitions.values() if p.manifest_ref is not None)
    assert await stored_bytes(world, "manifests/") <= 2.25 * live + 10_000
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    for index in range(99):
        assert len(await read_all(ledger, own_partition(ledger, topic, index))) == index + 1
    await world.close()


def test_usage_is_what_manifests_say() -> None:
    def segment(key: str, size: int, object_bytes: int, index_key: str = "") -> SegmentRef:
        return SegmentRef(key, 0, 1, size, 0, index_key or key, 0, 10, 0, 0, object_bytes)

    def manifest(*segments: SegmentRef) -> Manifest:
        return Manifest(b"t" * 16, 0, 1, segments)

    usage = Usage()
    one = manifest(segment("a", 100, 1000), segment("b", 600, 1000, "b.index"))
    two = manifest(segment("a", 500, 1000), segment("c", 5, -1))
    usage.add(one)
    assert [s.key for s in usage.sparse()] == ["a"]
    usage.add(two)
    assert not list(usage.sparse()) and usage.unknown() == ("c",)
    assert (usage.readable_bytes, usage.stored_bytes) == (1205, 2000)
    assert usage.live_bytes == sum(footprint(s) for m in (one, two) for s in m.segments)
    usage.learn("c", 500)
    assert [s.key for s in usage.sparse()] == ["c"] and usage.stored_bytes == 2500
    assert [d.key for d in usage.drop(two)] == ["c"]
    assert "a" in usage and "c" not in usage
    assert [s.key for s in usage.sparse()] == ["a"]
    assert [(d.key, d.index_key) for d in usage.drop(one)] == [
        ("a", "a"), ("b", "b.index"), ("b.index", "b.index"),
    ]  # fmt: skip
    assert (usage.readable_bytes, usage.live_bytes, usage.stored_bytes) == (0, 0, 0)
