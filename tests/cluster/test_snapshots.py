"""Snapshots and trimming: a restart reads little, and nobody is misled by what was deleted."""

import asyncio

from penstock.cluster.metadata_log import MetadataLog
from penstock.cluster.snapshots import HINT_KEY, entry_key, snapshot_key
from penstock.metadata.codec import Stub, decode_snapshot
from penstock.metadata.image import ClusterImage
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreUnavailableError
from penstock.storage.wal.port import WAL_PREFIX

from .rig import FaultyStore, creating, open_log, registering


async def grow(log: MetadataLog, count: int, prefix: str = "t") -> None:
    for number in range(count):
        assert isinstance(await log.propose(creating(f"{prefix}{number}")), ClusterImage)


async def test_a_restart_reads_snapshot_and_tail_and_lists_little() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner), snapshot_entries=10)
    await log.open()
    await log.propose(registering(1))
    await grow(log, 36)
    await log.snapshot_written()
    store = FaultyStore(inner, 7)
    late = open_log(store)
    assert await late.open() == log.image
    # A hundred names of entries at most, however long the log is; and which write-ahead logs there are.
    listed = [key for operation, key in store.requests if operation == "list"]
    assert listed == ["live/", entry_key(0)[:-2], WAL_PREFIX]
    # Snapshots at 10, 20 and 30: the hint leads to the third at once.
    assert ("get", snapshot_key(1)) not in store.requests
    assert sum(request[0] == "get" for request in store.requests) < 25


async def test_a_lost_or_stale_hint_only_costs_time() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner), snapshot_entries=5)
    await log.open()
    await log.propose(registering(1))
    await grow(log, 23)
    await log.snapshot_written()
    for hint in (None, b'{"snapshot":1}', b"garbage"):
        inner.objects.pop(HINT_KEY, None)
        if hint is not None:
            inner.objects[HINT_KEY] = hint
        assert await open_log(FaultyStore(inner)).open() == log.image


async def test_trimming_leaves_two_intervals_and_cuts_old_snapshots_down() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner), snapshot_entries=10)
    await log.open()
    await log.propose(registering(1))
    for number in range(39):
        await log.propose(creating(f"t{number}"))
        await log.snapshot_written()
    numbers = [int(key.rpartition("/")[2]) for key in inner.objects if key.startswith("meta/log/")]
    assert min(numbers) == 21 and max(numbers) == 40
    kinds = {n: decode_snapshot(inner.objects[snapshot_key(n)], n) for n in (1, 2, 3, 4)}
    assert kinds[1] == (0, Stub(10))
    assert kinds[2] == (10, Stub(20))
    assert kinds[3][0] == 20 and kinds[3][1].version == 30 and not isinstance(kinds[3][1], Stub)
    assert kinds[4][0] == 30
    assert kinds[4][1] == log.image


async def test_a_broker_that_lags_behind_the_trimmed_log_loads_the_snapshot() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner, 1), snapshot_entries=10)
    await log.open()
    await log.propose(registering(1))
    sleeper = open_log(FaultyStore(inner, 2))
    await sleeper.open()
    told: list[tuple[int, int]] = []
    sleeper.subscribe(lambda old, new: told.append((old.version, new.version)))
    for number in range(39):
        await log.propose(creating(f"t{number}"))
        await log.snapshot_written()
    assert entry_key(2) not in inner.objects
    assert await sleeper.catch_up() == log.image
    assert told[0][0] == 1


async def test_a_sleeper_cannot_bring_a_trimmed_number_back() -> None:
    """It proposes at a number that was used, trimmed, and so can be created again: the wish must not be
    taken for done there, must happen at the end of the log, and nobody may read the stray entry."""
    inner = MemoryStore()
    log = open_log(FaultyStore(inner, 1), snapshot_entries=10)
    await log.open()
    await log.propose(registering(1))
    sleeper, reader = open_log(FaultyStore(inner, 2)), open_log(FaultyStore(inner, 3))
    await sleeper.open()
    await reader.open()
    for number in range(39):
        await log.propose(creating(f"t{number}"))
        await log.snapshot_written()
    stray: list[bytes] = []
    store = FaultyStore(inner, 4)
    seen_stray = asyncio.Event()

    def watch(operation: str, key: str) -> None:
        if key == entry_key(2) and key in inner.objects:
            stray.append(inner.objects[key])
            seen_stray.set()

    sleeper._store.before = watch  # type: ignore[attr-defined]
    result = await sleeper.propose(creating("from-the-sleeper"))
    assert isinstance(result, ClusterImage)
    assert result.version == 41
    assert set(result.topics) == {*(f"t{n}" for n in range(39)), "from-the-sleeper"}
    assert await log.catch_up() == result == await reader.catch_up() == await open_log(store).open()
    assert stray, "the number was created again for a moment"
    assert entry_key(2) not in inner.objects


async def test_a_stray_entry_below_the_floor_is_never_applied() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner, 1), snapshot_entries=10)
    await log.open()
    await log.propose(registering(1))
    sleeper = open_log(FaultyStore(inner, 2))
    await sleeper.open()
    old_entry = inner.objects[entry_key(1)]
    for number in range(39):
        await log.propose(creating(f"t{number}"))
        await log.snapshot_written()
    # A write that was under way for a very long time arrives at a number that was trimmed.
    inner.objects[entry_key(2)] = old_entry.replace(b"host-1", b"host-X")
    images: list[ClusterImage] = []
    sleeper.subscribe(lambda old, new: images.append(new))
    assert await sleeper.catch_up() == log.image
    assert all(image == replay for image, replay in zip(images[-1:], [log.image], strict=True))


async def test_an_unfinished_trim_is_finished_by_the_next() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    log = open_log(store, snapshot_entries=10)
    await log.open()
    await log.propose(registering(1))

    def no_deletes(operation: str, key: str) -> None:
        if operation == "delete":
            raise StoreUnavailableError("not now")

    store.before = no_deletes
    for number in range(24):
        await log.propose(creating(f"t{number}"))
        await log.snapshot_written()
    assert entry_key(1) in inner.objects
    store.before = None
    for number in range(24, 36):
        await log.propose(creating(f"t{number}"))
        await log.snapshot_written()
    assert entry_key(1) not in inner.objects
    assert isinstance(decode_snapshot(inner.objects[snapshot_key(1)], 1)[1], Stub)


async def test_a_long_tail_is_read_many_entries_at_a_time() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner))
    await log.open()
    await log.propose(registering(1))
    await grow(log, 499)
    store = FaultyStore(inner, 3)
    under_way = most = 0
    real_get = inner.get

    async def counted(key: str) -> bytes | None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return await real_get(key)

    inner.get = counted  # type: ignore[method-assign]
    late = open_log(store)
    assert await late.open() == log.image
    assert 8 < most <= 32
