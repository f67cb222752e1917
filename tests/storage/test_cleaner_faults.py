"""Compaction beside settling, retention, deletion and other leaders, and what fails in the middle of it."""

import asyncio
from typing import Any

import msgspec
import pytest

from penstock.metadata.commands import AssignLeaders, LeaderMove
from penstock.metadata.image import ClusterImage
from penstock.metadata.refusal import Refusal
from penstock.storage.settling import cleaner, cleaner_pass
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.objects import StoreError, StoreFullError
from penstock.wire.batch import LENGTH_FROM
from penstock.wire.errors import ErrorCode
from tests.storage.compacting import (
    COMPACT,
    PROMPT,
    Pairs,
    collect,
    compacted,
    last_of,
    pairs_of,
    referred,
    stored,
    write,
)
from tests.storage.world import World, keys_of, own_partition

# What happens at the same time.


async def test_settling_goes_on_and_merging_waits(local: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("b", "1"), ("a", "2"))
    await ledger.settle()
    reading = asyncio.Event()
    go_on = asyncio.Event()
    fetch = ledger._reader.fetch

    async def slow(key: str, start: int, length: int) -> Any:
        reading.set()
        await go_on.wait()
        return await fetch(key, start, length)

    monkeypatch.setattr(ledger._reader, "fetch", slow)
    cleaning = asyncio.create_task(ledger.clean())
    await reading.wait()
    for number in range(10):
        await write(ledger, partition, ("b", str(number)))
        assert await ledger.settle()
    assert partition.manifest is not None and len(partition.manifest.segments) == 11
    await ledger._settler.merge()
    assert len(partition.manifest.segments) == 11
    go_on.set()
    assert await cleaning == 1
    assert len(partition.manifest.segments) == 11 and partition.manifest.compacted_end == 3
    assert [p[0] for p in pairs_of(await stored(ledger, partition))] == [1, *range(2, 13)]
    # Dirty segments are merged with each other, and not with clean ones.
    ledger._committer.unmerged[topic, 0] = None
    await ledger._settler.merge()
    assert [s.end_offset for s in partition.manifest.segments] == [3, 13]


async def test_retention_in_the_middle_wins(local: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, topic = await compacted(local, msgspec.structs.replace(COMPACT, delete=True))
    partition = own_partition(ledger, topic)
    for number in range(3):
        await write(ledger, partition, ("a", str(number)), ("b", str(number)))
        await ledger.settle()
    commit = ledger._committer.commit

    async def late(*arguments: Any) -> Any:
        monkeypatch.setattr(ledger._committer, "commit", commit)
        await ledger.delete_records(partition, 2)
        await ledger._settler.retain()
        return await commit(*arguments)

    monkeypatch.setattr(ledger._committer, "commit", late)
    assert await ledger.clean() == 0
    assert [p[0] for p in pairs_of(await stored(ledger, partition))] == [2, 3, 4, 5]
    monkeypatch.setattr(ledger._committer, "commit", commit)
    assert await ledger.clean() == 1
    assert [p[0] for p in pairs_of(await stored(ledger, partition))] == [4, 5]
    await collect(ledger)
    assert set(await keys_of(local.store, "segments/")) == referred(ledger)


async def test_a_deleted_topic_is_not_cleaned_to_the_end(
    local: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("a", "2"))
    await ledger.settle()
    commit = ledger._committer.commit

    async def late(*arguments: Any) -> Any:
        await local.delete_topic(topic)
        return await commit(*arguments)

    monkeypatch.setattr(ledger._committer, "commit", late)
    assert await ledger.clean() == 0
    await collect(ledger)
    assert await keys_of(local.store, "segments/") == []


async def test_a_leader_that_was_replaced_commits_nothing(local: World) -> None:
    local.policies["t"] = COMPACT
    first = await local.start(1, settings=PROMPT)
    second = await local.start(2, settings=PROMPT)
    topic = await local.create_topic("t", 1, (1, 2))
    partition = own_partition(first, topic)
    await write(first, partition, ("a", "1"), ("b", "1"), ("a", "2"))
    await first.settle()
    local.forget(first)  # It hears of nothing any more.
    await local.fence(1)
    info = local.metadata.image.partition(topic, 0)
    assert info is not None
    move = LeaderMove(topic, 0, info.leader_epoch, 2)
    await local.metadata.change(AssignLeaders(2, second.wal.epoch, (move,)))
    await second.update(local.metadata.image)
    manifest = local.metadata.image.partition(topic, 0)
    assert await first.clean() == 0
    assert local.metadata.image.partition(topic, 0) == manifest
    theirs = own_partition(second, topic)
    assert [p[0] for p in pairs_of(await stored(second, theirs))] == [0, 1, 2]
    assert await second.clean() == 1
    assert [p[0] for p in pairs_of(await stored(second, theirs))] == [1, 2]


# What fails.


async def test_a_commit_in_doubt_is_settled_later(local: World) -> None:
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("a", "2"))
    await ledger.settle()
    propose = ledger._committer._propose

    async def lost(decide: Any) -> ClusterImage | Refusal:
        local.forget(ledger)
        await propose(decide)
        raise StoreError("the answer was lost")

    ledger._committer._propose = lost
    with pytest.raises(StoreError):
        await ledger.clean()
    ledger._committer._propose = propose
    assert len(await stored(ledger, partition)) == 2, "it does not know yet"
    await collect(ledger)
    await ledger.update(local.metadata.image)
    local.metadata.subscribers.append(ledger.follow)
    assert pairs_of(await stored(ledger, partition)) == [(1, "a", "2")]
    await write(ledger, partition, ("a", "3"))
    await ledger.settle()
    assert await ledger.clean() == 1
    assert pairs_of(await stored(ledger, partition)) == [(2, "a", "3")]
    await collect(ledger)
    assert set(await keys_of(local.store, "segments/")) == referred(ledger)


async def test_a_refused_commit_leaves_nothing_behind(local: World) -> None:
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("a", "2"))
    await ledger.settle()
    propose = ledger._committer._propose

    async def refuse(decide: Any) -> ClusterImage | Refusal:
        return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no")

    ledger._committer._propose = refuse
    assert await ledger.clean() == 0
    await collect(ledger)
    assert set(await keys_of(local.store, "segments/")) == referred(ledger)
    ledger._committer._propose = propose
    assert await ledger.clean() == 1
    assert pairs_of(await stored(ledger, partition)) == [(1, "a", "2")]


async def test_a_partition_that_cannot_be_read_does_not_hold_up_others(local: World) -> None:
    ledger, topic = await compacted(local, partitions=2)
    bad, good = own_partition(ledger, topic, 0), own_partition(ledger, topic, 1)
    for partition in (bad, good):
        await write(ledger, partition, ("a", "1"), ("a", "2"))
        await ledger.settle()
    assert bad.manifest is not None
    (segment,) = bad.manifest.segments
    extents = await ledger._reader.index(segment)
    kept = extents.last_offsets[0]
    extents.last_offsets[0] = 0  # As if the index and the object were not of one piece.
    assert await ledger.clean() == 1
    assert pairs_of(await stored(ledger, good)) == [(1, "a", "2")]
    extents.last_offsets[0] = kept
    assert len(await stored(ledger, bad)) == 2
    assert await ledger.clean() == 0, "it is left alone for a while"
    local.clock.advance(15_000)
    assert await ledger.clean() == 1
    assert pairs_of(await stored(ledger, bad)) == [(1, "a", "2")]


async def test_a_batch_of_another_leader_epoch_is_not_cleaned(local: World) -> None:
    """Written anew it would get a CRC that vouches for it, as if it had always been so."""
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, ("a", "1"), ("b", "1"), ("a", "2"))
    await ledger.settle()
    assert partition.manifest is not None
    (segment,) = partition.manifest.segments
    fetch = ledger._reader.fetch

    async def hurt(key: str, start: int, length: int) -> Any:
        found = bytearray(await fetch(key, start, length))
        found[LENGTH_FROM + 3] ^= 4  # The last byte of the leader epoch, which no CRC covers.
        return found

    ledger._reader.fetch = hurt  # type: ignore[method-assign]
    assert await ledger.clean() == 0
    ledger._reader.fetch = fetch  # type: ignore[method-assign]
    assert partition.manifest.segments == (segment,)
    local.clock.advance(15_000)
    assert await ledger.clean() == 1
    assert pairs_of(await stored(ledger, partition)) == [(1, "b", "1"), (2, "a", "2")]


async def test_what_is_cleaned_can_be_read_before_the_pass_ends(
    local: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets are missing there, which is no damage."""
    monkeypatch.setattr(cleaner, "_SHELF_GROUPS_MAX", 1)
    ledger, topic = await compacted(local, msgspec.structs.replace(COMPACT, segment_bytes=250))
    partition = own_partition(ledger, topic)
    for number in range(4):
        await write(ledger, partition, ("a", "1"), (f"b{number}", "1"), ("a", "2"), (f"c{number}", "1"))
        await ledger.settle()
    expected = last_of(pairs_of(await stored(ledger, partition)))
    commit, commits = ledger._committer.commit, 0

    async def commit_twice(*arguments: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits > 2:
            raise StoreError("no more")
        return await commit(*arguments)

    monkeypatch.setattr(ledger._committer, "commit", commit_twice)
    assert await ledger.clean() == 0
    assert commits == 3 and partition.manifest is not None
    assert 0 < partition.manifest.compacted_end < partition.manifest.end_offset
    assert last_of(pairs_of(await stored(ledger, partition))) == expected
    monkeypatch.undo()
    local.clock.advance(15_000)
    assert await ledger.clean() == 1
    assert pairs_of(await stored(ledger, partition)) == expected


async def test_killed_at_any_write_the_partition_is_whole(local: World) -> None:
    """Kill the broker before each of the writes that cleaning makes, in turn."""
    ledger, topic = await compacted(local, partitions=2)
    expected: dict[int, Pairs] = {}
    store = local.store
    assert isinstance(store, DirectoryStore)
    create = store.create_durable
    for round_number in range(8):
        for index in range(2):
            partition = own_partition(ledger, topic, index)
            await write(ledger, partition, *((f"k{n % 3}", f"{round_number}.{n}") for n in range(5)))
            expected[index] = last_of(pairs_of(await stored(ledger, partition)))
        await ledger.settle()
        writes_left = round_number % 3

        async def die_in_create(key: str, *parts: Any) -> bool:
            nonlocal writes_left
            writes_left -= 1
            if writes_left < 0:
                raise asyncio.CancelledError
            return await create(key, *parts)

        async def die_in_propose(decide: Any) -> Any:
            raise asyncio.CancelledError

        if round_number % 3 == 2:
            ledger._committer._propose = die_in_propose
        store.create_durable = die_in_create  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await ledger.clean()
        store.create_durable = create  # type: ignore[method-assign]
        await local.kill(ledger)
        ledger = await local.start(settings=PROMPT)
        for index in range(2):
            found = pairs_of(await stored(ledger, own_partition(ledger, topic, index)))
            assert last_of(found) == expected[index]
    await ledger.clean()
    await ledger._garbage.sweep(ledger._holdings.image, 0)
    await collect(ledger)
    assert set(await keys_of(local.store, "segments/")) == referred(ledger)
    for index in range(2):
        assert pairs_of(await stored(ledger, own_partition(ledger, topic, index))) == expected[index]


async def test_a_partition_that_is_given_away_in_the_middle_leaves_nothing_behind(
    local: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner_pass, "SEGMENT_BYTES", 50_000)
    monkeypatch.setattr(cleaner_pass, "WINDOW_BYTES", 1)  # An extent at a time.
    ledger, topic = await compacted(local)
    partition = own_partition(ledger, topic)
    await write(ledger, partition, *((f"k{key}", "x" * 5000) for key in range(60)), ("k0", "y"))
    await ledger.settle()
    store = local.store
    assert isinstance(store, DirectoryStore)
    create = store.create_durable
    written: list[str] = []

    async def give_away(key: str, *parts: Any) -> bool:
        written.append(key)
        if len(written) == 3:
            partition.closed = True
        return await create(key, *parts)

    store.create_durable = give_away  # type: ignore[method-assign]
    assert await ledger.clean() == 0
    store.create_durable = create  # type: ignore[method-assign]
    partition.closed = False
    assert len(written) == 3
    await collect(ledger)
    assert set(await keys_of(local.store, "segments/")) == referred(ledger)
    assert await ledger.clean() == 1
    assert len(await stored(ledger, partition)) == 60


async def test_a_full_store_does_not_fill_up_further(local: World) -> None:
    ledger, topic = await compacted(local, partitions=2)
    for index in range(2):
        await write(ledger, own_partition(ledger, topic, index), ("a", "1"), ("a", "2"))
    await ledger.settle()
    store = local.store
    assert isinstance(store, DirectoryStore)
    create = store.create_durable
    before = set(await keys_of(local.store))
    for allowed in range(2):
        left = allowed

        async def full(key: str, *parts: Any) -> bool:
            nonlocal left
            if not left:
                raise StoreFullError("no room")
            left -= 1
            return await create(key, *parts)

        store.create_durable = full  # type: ignore[method-assign]
        with pytest.raises(StoreFullError):
            await ledger.clean()
        store.create_durable = create  # type: ignore[method-assign]
        await collect(ledger)
        assert set(await keys_of(local.store)) == before
    assert await ledger.clean() == 2
    for index in range(2):
        assert pairs_of(await stored(ledger, own_partition(ledger, topic, index))) == [(1, "a", "2")]
