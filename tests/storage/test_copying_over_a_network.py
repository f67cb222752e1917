"""What is copied from a store is checked on the way: a bit that flipped in an answer does not become a bit
that is flipped for ever."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.log.checking import Facts
from penstock.storage.settling.composing import CopyRange, compose
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.files import Files
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreError, StoreUnavailableError
from penstock.wire.batch import Record, build_batch, stamp


class Noisy(MemoryStore):
    """The first answers to some reads have a flipped bit."""

    def __init__(self, noisy: int) -> None:
        super().__init__()
        self.noisy = noisy
        self.reads = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        found = bytearray(await super().get_range(key, start, length))
        self.reads += 1
        if self.noisy:
            self.noisy -= 1
            found[-self.reads] ^= 4
        return bytes(found)


def batch(base_offset: int) -> bytes:
    made = bytearray(build_batch([Record(0, 1, b"key", b"value %d" % base_offset)]))
    stamp(made, 0, base_offset, 0)
    return bytes(made)


def promised(base_offset: int, count: int) -> tuple[int, int, Facts]:
    return base_offset, base_offset + count - 1, Facts((), 0)


def copied(store: Noisy, source: bytes, size: int) -> bytes:
    store.objects["source"] = source
    per_range = size // len(batch(10))
    ranges = [
        CopyRange("source", at, size, *promised(10 + number * per_range, per_range))
        for number, at in enumerate(range(0, len(source), size))
    ]
    asyncio.run(compose(store, "target", ranges, b"tail"))
    return store.objects["target"]


def test_a_bit_that_flipped_on_the_way_is_read_again() -> None:
    one = batch(10)
    source = one + batch(11) + batch(12)
    assert copied(Noisy(1), source, len(one)) == source + b"tail"


def test_a_healthy_source_is_read_once() -> None:
    one = batch(10)
    store = Noisy(0)
    assert copied(store, one + batch(11), 2 * len(one)) == one + batch(11) + b"tail"
    assert store.reads == 1


def test_several_noisy_answers_prove_nothing() -> None:
    one = batch(10)
    assert copied(Noisy(4), one, len(one)) == one + b"tail"


def test_a_source_that_is_read_differently_each_time_is_not_copied() -> None:
    store = Noisy(100)
    with pytest.raises(StoreUnavailableError, match="differently"):
        copied(store, batch(10), len(batch(10)))
    assert "target" not in store.objects


def test_what_is_hurt_in_the_source_is_copied_as_it_is() -> None:
    hurt = bytearray(batch(10))
    hurt[-3] ^= 1
    assert copied(Noisy(0), bytes(hurt), len(hurt)) == bytes(hurt) + b"tail"


def test_batches_out_of_order_are_looked_at_again() -> None:
    store = Noisy(0)
    source = batch(11) + batch(10)
    assert copied(store, source, len(source)) == source + b"tail"
    assert store.reads > 1


class NoisyFiles(Files):
    """The first reads of a file have a flipped bit, each another."""

    def __init__(self, noisy: int) -> None:
        self.noisy = noisy

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int) -> int:
        count = super().preadv(fd, buffers, position, flags)
        if self.noisy:
            buffers[0][count - self.noisy] ^= 4
            self.noisy -= 1
        return count


async def test_a_bit_that_flipped_in_a_read_of_a_file_is_read_again(tmp_path: Path) -> None:
    source = batch(10) + batch(11)
    for noisy in (0, 1, 2):
        store = DirectoryStore(str(tmp_path / str(noisy)), files=NoisyFiles(noisy))
        await store.create("source", source)
        await compose(store, "target", [CopyRange("source", 0, len(source), *promised(10, 2))], b"tail")
        assert await store.get("target") == source + b"tail"
        await store.close()


@pytest.mark.parametrize("at", [0, 5, 7, 12, 15])
async def test_offsets_and_epochs_that_flipped_on_the_way_are_read_again(tmp_path: Path, at: int) -> None:
    """No CRC covers them. What they must be is in the index and in the table of epochs."""
    first = batch(10)
    source = first + batch(11)
    ranges = [CopyRange("source", 0, len(source), 10, 11, Facts(((0, 0),), 0))]
    for place in (at, len(first) + at):
        files = OneFlip(place)
        store = DirectoryStore(str(tmp_path / str(place)), files=files)
        await store.create("source", source)
        await compose(store, "target", ranges, b"")
        assert files.flipped
        assert await store.get("target") == source
        await store.close()
        distant = OneFlipDistant(place)
        distant.objects["source"] = source
        await compose(distant, "target", ranges, b"")
        assert distant.objects["target"] == source


class OneFlip(Files):
    def __init__(self, at: int) -> None:
        self._at = at
        self.flipped = False

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int) -> int:
        count = super().preadv(fd, buffers, position, flags)
        if not self.flipped:
            self.flipped = True
            buffers[0][self._at] ^= 1
        return count


class OneFlipDistant(MemoryStore):
    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at
        self.flipped = False

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        found = bytearray(await super().get_range(key, start, length))
        if not self.flipped:
            self.flipped = True
            found[self._at] ^= 1
        return bytes(found)


class Short(Files):
    """Gives at most so many bytes at once."""

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int) -> int:
        return super().preadv(fd, (memoryview(buffers[0])[:100],), position, flags)


@pytest.mark.parametrize("files", [Files(), Short()])
@pytest.mark.parametrize("turns", [1, 3, 700])
async def test_batches_of_partitions_that_wrote_in_turn_are_put_in_order(
    tmp_path: Path, files: Files, turns: int
) -> None:
    """Close together and far apart, in one step and in many."""
    gap = b"-" * 5000
    batches = [[batch(number) for number in range(turns)] for _partition in range(3)]
    source = bytearray()
    ranges: list[list[CopyRange]] = [[], [], []]
    for number in range(turns):
        for partition in range(3):
            one = batches[partition][number]
            ranges[partition].append(CopyRange("source", len(source), len(one), *promised(number, 1)))
            source += one
        source += gap if number % 2 else b""
    store = DirectoryStore(str(tmp_path), files=files)
    await store.create("source", bytes(source))
    await compose(store, "target", [one for of in ranges for one in of], b"tail")
    assert await store.get("target") == b"".join(one for of in batches for one in of) + b"tail"
    await store.close()


async def test_a_file_that_ends_too_early_is_not_copied(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    await store.create("source", batch(10))
    with pytest.raises(StoreError, match="source ends before byte"):
        await compose(store, "target", [CopyRange("source", 0, len(batch(10)) + 1, *promised(10, 1))], b"")
    assert await store.get("target") is None
    await store.close()


async def test_a_file_that_is_hurt_is_copied_as_it_is(tmp_path: Path) -> None:
    hurt = bytearray(batch(10))
    hurt[-3] ^= 1
    store = DirectoryStore(str(tmp_path))
    await store.create("source", bytes(hurt))
    await compose(store, "target", [CopyRange("source", 0, len(hurt), *promised(10, 1))], b"")
    assert await store.get("target") == bytes(hurt)
    await store.close()


async def test_large_ranges_are_checked_on_the_way_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They make most of the bytes; what they are copied from is deleted."""
    made = bytearray(build_batch([Record(0, 1, b"key", bytes(700_000))]))
    stamp(made, 0, 10, 0)
    source = bytes(made)
    files = OneFlip(400_000)
    store = DirectoryStore(str(tmp_path), files=files)
    await store.create("source", source)
    ranges = [CopyRange("source", 0, len(source), *promised(10, 1))]
    await compose(store, "target", ranges, b"")
    assert files.flipped and not caplog.records
    assert await store.get("target") == source
    hurt = bytearray(source)
    hurt[600_000] ^= 1
    await store.create("hurt", hurt)
    await compose(store, "copy", [ranges[0]._replace(key="hurt")], b"")
    assert "hurt bytes were copied as they are key=hurt" in caplog.text
    await store.close()
