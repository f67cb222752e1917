"""durability=os: a loss of power leaves zeros where blocks were not written, and files that end too soon.

Each block of a small log in turn is so lost. Whatever the flushes hold that were spared is there, at its
offset, readers pass over the rest, and nothing is said to be hurt: none of it was promised.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from penstock.log.flush import FILE_HEADER_SIZE, FLUSH_HEADER_SIZE, decode_flush_header
from penstock.metadata.image import ClusterImage
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.wal.following import follow_log
from tests.storage.memory_files import MemoryFiles
from tests.storage.test_damage import BOOT, OTHER_BOOT, open_directory, read_around
from tests.storage.world import World, append_ok, batch, own_partition

BLOCK = 4096
PARTITIONS = 4
Place = tuple[int, int]


class Written(NamedTuple):
    disk: MemoryFiles
    image: ClusterImage
    topic: bytes
    acknowledged: dict[Place, bytes]
    """Value by partition and offset."""

    def files(self) -> list[str]:
        return sorted(path for path in self.disk.contents if "/wal/" in path and path[-1].isdecimal())


async def write(file_bytes: int, *, sync: bool = False) -> Written:
    disk = MemoryFiles(BOOT)
    world = World(*open_directory(disk, sync, file_bytes))
    ledger = await world.start()
    topic = await world.create_topic("t", PARTITIONS)
    acknowledged: dict[Place, bytes] = {}

    async def put(index: int, *sizes: int) -> None:
        values = [b"%d %d %d;" % (index, number, size) * (size // 8) for number, size in enumerate(sizes)]
        partition = own_partition(ledger, topic, index)
        for offset, value in zip(
            await append_ok(ledger, partition, *map(batch, values)), values, strict=True
        ):
            acknowledged[index, offset] = value

    await put(0, 300)
    await put(3, 700)
    for number in range(6):
        # Flushes within a block, of several blocks, and of several partitions.
        await put(number % 2, 100 + 500 * number)
        await put(0, 5000, 200, 3000)
        await asyncio.gather(put(1, 900), put(2, 2500), put(0, 40))
    await world.kill(ledger)
    await world.store.close()
    return Written(disk, world.metadata.image, topic, acknowledged)


def with_holes(whole: bytes, blocks: Iterable[int]) -> bytes:
    hurt = bytearray(whole)
    for block in blocks:
        at = block * BLOCK
        hurt[at : at + BLOCK] = bytes(len(hurt[at : at + BLOCK]))
    return bytes(hurt)


def flush_spans(whole: bytes) -> Iterator[tuple[int, int]]:
    at = FILE_HEADER_SIZE
    while at < len(whole):
        end = at + decode_flush_header(whole[at : at + FLUSH_HEADER_SIZE]).size
        yield at, end
        at = end


def spared(written: Written, path: str, hurt: bytes) -> set[bytes]:
    """The values in flushes that are as they were and have something to tell their log by."""
    found: set[bytes] = set()
    for name in written.files():
        whole = bytes(written.disk.contents[name])
        now = hurt if name == path else whole
        if now[:FILE_HEADER_SIZE] != whole[:FILE_HEADER_SIZE] and len(written.files()) == 1:
            continue
        for start, end in flush_spans(whole):
            if now[start:end] == whole[start:end]:
                found |= {one for one in written.acknowledged.values() if one in whole[start:end]}
    return found


async def start(written: Written, disk: MemoryFiles, file_bytes: int, image: ClusterImage) -> World:
    world = World(*open_directory(disk, False, file_bytes))
    world.metadata.image = image
    return world


async def found_in(ledger: Ledger, written: Written) -> tuple[dict[Place, bytes], list[int]]:
    values: dict[Place, bytes] = {}
    ends = []
    for index in range(PARTITIONS):
        partition = own_partition(ledger, written.topic, index)
        found = await read_around(ledger, partition)
        assert not found.hurt and not partition.hurt
        values |= {(index, offset): value for offset, value in found.values.items()}
        ends.append(found.end)
    return values, ends


async def check(written: Written, path: str, hurt: bytes, file_bytes: int) -> int:
    """How many records are gone."""
    disk = written.disk.copy(OTHER_BOOT, path, hurt)
    world = await start(written, disk, file_bytes, written.image)
    ledger = await world.start()
    values, ends = await found_in(ledger, written)
    assert values.items() <= written.acknowledged.items()
    assert spared(written, path, hurt) <= set(values.values())
    for index, end in enumerate(ends):
        kept = [offset for place, offset in values if place == index]
        assert end == max(kept, default=-1) + 1, "it ends at its last record"
        (offset,) = await append_ok(ledger, own_partition(ledger, written.topic, index), batch(b"next"))
        assert offset == end
        values[index, offset] = b"next"
    # The same is found once more, in a log that was sealed; and when all of it is settled.
    await world.kill(ledger)
    world = await start(written, disk, file_bytes, world.metadata.image)
    ledger = await world.start()
    assert (await found_in(ledger, written))[0] == values
    await ledger.settle()
    assert (await found_in(ledger, written))[0] == values
    await world.close()
    return len(written.acknowledged) + PARTITIONS - len(values)


@pytest.mark.parametrize("file_bytes", [9000, 1 << 20])
async def test_each_block_of_the_log(file_bytes: int) -> None:
    written = await write(file_bytes)
    losses = 0
    for path in written.files():
        whole = bytes(written.disk.contents[path])
        blocks = range(-(-len(whole) // BLOCK))
        for some in itertools.chain(itertools.combinations(blocks, 1), itertools.pairwise(blocks)):
            losses += bool(await check(written, path, with_holes(whole, some), file_bytes))
    assert losses


@pytest.mark.parametrize("file_bytes", [9000, 1 << 20])
async def test_each_file_ends_too_soon(file_bytes: int) -> None:
    written = await write(file_bytes)
    for path in written.files():
        whole = bytes(written.disk.contents[path])
        for size in (0, 10, FILE_HEADER_SIZE, *range(1000, len(whole), 1700)):
            assert await check(written, path, whole[:size], file_bytes)


async def test_a_page_that_was_written_before_the_flush_that_ends_in_it() -> None:
    """A hole begins where a flush begins, and ends with the block."""
    written = await write(1 << 20)
    (path,) = written.files()
    whole = bytes(written.disk.contents[path])
    for begin, _end in flush_spans(whole):
        hurt = bytearray(whole)
        end = min(-(-begin // BLOCK) * BLOCK, len(whole))
        hurt[begin:end] = bytes(end - begin)
        if begin != end:
            assert await check(written, path, bytes(hurt), 1 << 20)


async def test_a_flush_of_which_nothing_is_left_to_tell_what_it_held() -> None:
    """Blocks may come back with what some deleted file held. Nobody's offsets jump for it."""
    written = await write(1 << 20)
    (path,) = written.files()
    whole = bytes(written.disk.contents[path])
    for begin, end in flush_spans(whole):
        stale = (bytes(range(1, 256)) * len(whole))[: end - begin]
        assert await check(written, path, whole[:begin] + stale + whole[end:], 1 << 20)


async def test_zeros_in_which_a_bit_rots_are_still_what_the_power_left() -> None:
    written = await write(1 << 20)
    (path,) = written.files()
    for at in (0, 8, 57):
        hurt = bytearray(len(written.disk.contents[path]))
        hurt[at] ^= 4
        assert await check(written, path, bytes(hurt), 1 << 20) == len(written.acknowledged)


async def test_a_count_that_is_greater_than_what_is_left() -> None:
    """A log was sealed by a version that did not sync it, and then the power went."""
    written = await write(9000)
    world = await start(written, written.disk, 9000, written.image)
    await world.start()
    image = world.metadata.image
    await world.close()
    path = written.files()[-1]
    disk = written.disk.copy(OTHER_BOOT, path, bytes(written.disk.contents[path])[:100])
    world = await start(written, disk, 9000, image)
    ledger = await world.start()
    values, ends = await found_in(ledger, written)
    assert values.items() < written.acknowledged.items()
    assert max(ends) < 100
    await world.close()


@pytest.mark.parametrize(("sync", "boot"), [(True, OTHER_BOOT), (False, BOOT)])
async def test_what_the_power_cannot_have_taken_is_hurt(sync: bool, boot: bytes) -> None:
    """Files that were synced, and those of the present boot: no offset is given again."""
    written = await write(1 << 20, sync=sync)
    (path,) = written.files()
    whole = bytes(written.disk.contents[path])
    disk = written.disk.copy(boot, path, with_holes(whole, [2]))
    world = World(*open_directory(disk, sync, 1 << 20))
    world.metadata.image = written.image
    ledger = await world.start()
    hurt = 0
    for index in range(PARTITIONS):
        partition = own_partition(ledger, written.topic, index)
        hurt += len((await read_around(ledger, partition)).hurt)
        (offset,) = await append_ok(ledger, partition, batch(b"next"))
        assert offset > max(offset for place, offset in written.acknowledged if place == index)
    assert hurt
    await world.close()


async def test_rot_is_hurt_also_there() -> None:
    written = await write(1 << 20)
    (path,) = written.files()
    hurt = bytearray(written.disk.contents[path])
    hurt[2 * BLOCK : 3 * BLOCK] = bytes(range(256)) * 16
    disk = written.disk.copy(OTHER_BOOT, path, bytes(hurt))
    world = await start(written, disk, 1 << 20, written.image)
    ledger = await world.start()
    partitions = [own_partition(ledger, written.topic, index) for index in range(PARTITIONS)]
    assert any([(await read_around(ledger, partition)).hurt for partition in partitions])
    await world.close()


async def test_a_reader_waits_before_a_hole_until_the_log_is_sealed() -> None:
    written = await write(9000)
    path = written.files()[1]
    whole = bytes(written.disk.contents[path])
    disk = written.disk.copy(OTHER_BOOT, path, with_holes(whole, [0]))
    world = await start(written, disk, 9000, written.image)
    (wal,) = {wal for topic in written.image.topics.values() for p in topic.partitions for wal in p.wals}
    tail = follow_log(world.store, wal, 0)
    before = (await tail.read_on()).flushes
    assert before and before[-1].number + 1 == int(path[-20:])
    assert not (await tail.read_on()).flushes
    end = await world.wal_store.seal(wal)
    rest = (await tail.read_on(end)).flushes
    assert [flush.number for flush in before + rest] == list(range(end))
    assert rest[0].damage is not None and rest[0].damage.torn and rest[-1].damage is None
    await world.store.close()


async def test_a_log_that_ends_within_a_hole_is_read_to_its_end() -> None:
    """The header that is found behind the hole is that of a flush which does not count."""
    written = await write(1 << 20)
    (path,) = written.files()
    contents = bytearray(written.disk.contents[path])
    starts = [FILE_HEADER_SIZE]
    while starts[-1] < len(contents):
        header = decode_flush_header(contents[starts[-1] : starts[-1] + FLUSH_HEADER_SIZE])
        starts.append(starts[-1] + header.size)
    contents[starts[2] : starts[5]] = bytes(starts[5] - starts[2])
    (wal,) = {wal for topic in written.image.topics.values() for one in topic.partitions for wal in one.wals}
    disk = written.disk.copy(OTHER_BOOT, path, bytes(contents))
    _store, wal_store = open_directory(disk, False, 1 << 20)
    assert [flush.number async for flush in wal_store.scan(wal, 0, 4)] == [0, 1, 2, 3]
