"""Where reads come from: the tail cache, the page cache, the store; and what happens around them."""

import asyncio
from pathlib import Path

import pytest

from penstock.storage.partitions.answers import OffsetOutOfRangeError, Slice
from penstock.storage.partitions.tail_cache import COPIED_BYTES_MAX, Tail, TailCache
from penstock.storage.stores.directory import DirectoryStore
from penstock.testing.waiting import eventually
from penstock.wire.errors import ErrorCode
from tests.storage.test_settling import NO_DELAY, PROMPT, collect, fill, forget_tails
from tests.storage.world import World, append, append_ok, batch, keys_of, own_partition, read, read_all

Place = tuple[int, int, int, int]


def placed(offset: int, count: int = 1) -> Place:
    return (offset, offset + count - 1, 0, -1)


def test_the_tail_cache_is_one_queue_over_all_partitions() -> None:
    cache = TailCache(10_000)
    tails = [Tail(), Tail()]
    for offset in range(40):
        cache.append_batches(tails[offset % 2], [(bytearray(500), placed(offset // 2), None)])
        assert cache.bytes_used <= 10_000
    for tail in tails:
        assert 0 < tail.start < 20
        buffers, size, next_offset = tail.read(tail.start, 1 << 20, 20)
        assert (size, next_offset) == (500 * (20 - tail.start), 20) and sum(map(len, buffers)) == size
    assert abs(tails[0].start - tails[1].start) <= 1


def test_a_view_counts_as_the_buffer_that_it_keeps_alive() -> None:
    cache = TailCache(300_000)
    tail = Tail()
    for number in range(10):
        arena = bytearray(100_000)
        views = [memoryview(arena)[at : at + 10_000] for at in (0, 20_000)]
        places = [placed(2 * number), placed(2 * number + 1)]
        cache.append_batches(tail, [(view, place, None) for view, place in zip(views, places, strict=True)])
    assert cache.bytes_used <= 300_000
    assert tail.start >= 14, "two buffers of 100 kB fit, with their entries, not three"
    # A small view is copied instead, and holds nothing.
    small = memoryview(bytearray(100_000))[:COPIED_BYTES_MAX]
    cache.append_batches(tail, [(small, placed(20), None)])
    assert isinstance(tail.buffers[-1], bytes)


def test_a_batch_larger_than_the_cache_is_kept_alone() -> None:
    cache = TailCache(1000)
    tail = Tail()
    cache.append_batches(tail, [(bytearray(100), placed(0), None), (bytearray(5000), placed(1, 3), None)])
    assert tail.start == 1
    assert tail.read(2, 10, 100)[1:] == (5000, 4)
    cache.append_batches(tail, [(bytearray(100), placed(4), None)])
    assert tail.start == 4


async def test_records_below_the_log_start_are_gone_from_the_cache_too(local: World) -> None:
    ledger = await local.start()
    partition = own_partition(ledger, await local.create_topic("t"))
    await fill(ledger, partition, 5)
    await ledger.delete_records(partition, 3)
    with pytest.raises(OffsetOutOfRangeError):
        await read(ledger, partition, 2)
    assert [offset for offset, _ in await read_all(ledger, partition)] == [3, 4]


async def test_the_page_cache_answers_at_once(local: World) -> None:
    ledger = await local.start()
    partition = own_partition(ledger, await local.create_topic("t"))
    await fill(ledger, partition, 5)
    forget_tails(ledger)
    assert isinstance(ledger.read(partition, 2, 1000, limit_offset=5), Slice)
    await ledger.settle()
    assert isinstance(ledger.read(partition, 2, 1000, limit_offset=5), Slice)


async def test_what_the_page_cache_does_not_have_is_read_by_a_thread(local: World) -> None:
    ledger = await local.start()
    topic = await local.create_topic("t")
    values = await fill(ledger, own_partition(ledger, topic), 5)
    await ledger.settle()
    await local.kill(ledger)
    ledger = await local.start()
    partition = own_partition(ledger, topic)
    assert isinstance(local.store, DirectoryStore)
    local.store._read_cached = lambda fd, start, buffer: None  # type: ignore[method-assign]
    answer = ledger.read(partition, 0, 1 << 20, limit_offset=5)
    assert not isinstance(answer, Slice)
    assert (await answer).next_offset == 5
    assert [value for _, value in await read_all(ledger, partition)] == values


async def test_a_read_on_its_way_survives_the_deletion_of_what_it_reads(world: World) -> None:
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t")
    values = await fill(ledger, own_partition(ledger, topic), 6)
    await world.kill(ledger)
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, topic)
    if isinstance(world.store, DirectoryStore):
        world.store._read_cached = lambda fd, start, buffer: None  # type: ignore[method-assign]
    planned = ledger.read(partition, 0, 1 << 20, limit_offset=6)
    assert not isinstance(planned, Slice)
    # Before it gets to read, everything is settled and the log it wanted to read is deleted.
    await ledger.settle()
    await collect(ledger)
    assert (await planned).next_offset == 6
    assert [value for _, value in await read_all(ledger, partition)] == values


async def test_watchers_are_woken_until_they_stop(local: World) -> None:
    ledger = await local.start()
    partition = own_partition(ledger, await local.create_topic("t"))
    seen: list[str] = []
    stop_first = partition.watch(lambda: seen.append("first"))

    def once() -> None:
        seen.append("once")
        stop_once()

    stop_once = partition.watch(once)
    await append_ok(ledger, partition, batch(b"a"), batch(b"b"))
    await append_ok(ledger, partition, batch(b"c"))
    stop_first()
    stop_first()
    await append_ok(ledger, partition, batch(b"d"))
    assert seen == ["first", "once", "first"]


async def test_a_log_that_is_missing_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.ledger.takeover._RETRY_MAX_SECONDS", 0.1)
    ledger = await world.start()
    t, u = await world.create_topic("t"), await world.create_topic("u")
    await fill(ledger, own_partition(ledger, t), 3)
    await fill(ledger, own_partition(ledger, u), 3)
    await world.kill(ledger)
    ledger = await world.start()
    await fill(ledger, own_partition(ledger, u), 2)
    await world.kill(ledger)
    # Somebody moves the first log away.
    moved = {}
    for key in await keys_of(world.store, "wal/1/1/"):
        if key[-1].isdecimal():
            stored = await world.store.get(key)
            assert stored is not None
            moved[key] = stored
            await world.store.delete(key)
    ledger = await world.start()
    assert ledger.partition(t, 0) is None and ledger.partition(u, 0) is None
    assert ledger.damaged(t, 0) is None, "what is not there is not damaged"
    assert ledger.refused(t, 0) and ledger.refused(u, 0), "and clients are told that it is the store's fault"
    # Others go on.
    v = await world.create_topic("v")
    await append_ok(ledger, own_partition(ledger, v), batch(b"fine"))
    for key, stored in moved.items():
        await world.store.create(key, stored)
    await eventually(lambda: ledger.partition(t, 0) is not None and ledger.partition(u, 0) is not None)
    assert not ledger.refused(t, 0) and not ledger.refused(u, 0)
    assert len(await read_all(ledger, own_partition(ledger, t))) == 3
    assert len(await read_all(ledger, own_partition(ledger, u))) == 5


async def test_a_manifest_that_is_damaged_closes_its_partition_only(world: World) -> None:
    ledger = await world.start()
    t, u = await world.create_topic("t"), await world.create_topic("u")
    await fill(ledger, own_partition(ledger, t), 3)
    await ledger.settle()
    await fill(ledger, own_partition(ledger, u), 3)
    await ledger.settle()
    info = world.metadata.image.partition(t, 0)
    assert info is not None and info.manifest is not None
    await world.kill(ledger)
    whole = await world.store.get(info.manifest.key)
    assert whole is not None
    await world.store.put(info.manifest.key, bytes(len(whole)))
    ledger = await world.start()
    assert ledger.partition(t, 0) is None and "checksum" in str(ledger.damaged(t, 0))
    assert len(await read_all(ledger, own_partition(ledger, u))) == 3
    # Brought back, it is taken.
    await world.store.put(info.manifest.key, whole)
    await eventually(lambda: ledger.partition(t, 0) is not None)
    assert ledger.damaged(t, 0) is None and len(await read_all(ledger, own_partition(ledger, t))) == 3


async def test_a_closed_ledger_answers_what_it_had_begun(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    answers: list[object] = []
    for _ in range(3):
        ledger.append(partition, batch(b"x"), answers.append)
    await ledger.close()
    assert len(answers) == 3 and not any(isinstance(a, ErrorCode) for a in answers)
    world.ledgers.remove(ledger)
    world.forget(ledger)


async def test_leftovers_of_killed_processes_are_swept(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    await store.create("segments/1/2/3", b"x")
    await store.put("live/1", b"lease")
    (tmp_path / "tmp" / "left").write_bytes(b"half")
    (tmp_path / "tmp" / "left-directory").mkdir()
    (tmp_path / "tmp" / "left-directory" / "open").write_bytes(b"")
    await store.delete("segments/1/2/3")
    await store.sweep(0)
    assert (tmp_path / "tmp" / "left").exists() and (tmp_path / "segments" / "1" / "2").exists()
    await store.sweep(1 << 60)
    assert [path.suffix for path in (tmp_path / "tmp").iterdir()] == [".lock"] and not (
        tmp_path / "segments"
    ).exists()
    # Another process swept the directory that this one knows to exist.
    await store.create("manifests/1/1", b"x")
    await store.delete("manifests/1/1")
    (tmp_path / "manifests" / "1").rmdir()
    assert await store.create("manifests/1/2", b"x")
    await store.put("live/1", b"again")
    assert await store.get("live/1") == b"again"
    await store.close()


async def test_appends_of_many_tasks_share_flushes(local: World) -> None:
    ledger = await local.start()
    partition = own_partition(ledger, await local.create_topic("t"))
    await asyncio.gather(*(append(ledger, partition, batch(b"%d" % n)) for n in range(100)))
    counters = ledger.counters()
    assert counters["flush_batches"] == 100 and counters["flushes"] <= 3
