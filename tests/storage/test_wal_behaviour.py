"""One behaviour suite for the WalStore port: files on a directory, one object per flush elsewhere."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.log.flush import encode_flush_header, encode_index, iter_blocks
from penstock.metadata.image import WalRef
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import (
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    StoreError,
    StoreUnavailableError,
)
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.log_file import MisplacedFileError
from penstock.storage.wal.objects import SEAL, ObjectWalStore
from penstock.storage.wal.port import Durable, Failed, Fenced, Outcome, ScannedFlush, WalStore, WalWriter
from penstock.wire.buffers import Buffer
from tests.storage.world import batch, keys_of

WAL = WalRef(3, 17)
TOPIC = b"topic id 16 byte"


class Logs:
    def __init__(self, store: ObjectStore, wal_store: WalStore) -> None:
        self.store = store
        self.wal_store = wal_store

    async def create(self) -> WalWriter:
        writer = await self.wal_store.create(WAL)
        assert not isinstance(writer, Fenced)
        return writer

    async def scan(self, start: int, end: int) -> list[ScannedFlush]:
        return [flush async for flush in self.wal_store.scan(WAL, start, end)]


@pytest.fixture(params=["os", "fsync", "objects"])
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Logs]:
    store: ObjectStore
    if request.param == "objects":
        store = MemoryStore()
        made = Logs(store, ObjectWalStore(store))
    else:
        store = DirectoryStore(str(tmp_path), sync=request.param == "fsync")
        made = Logs(store, DirectoryWalStore(store, file_bytes=600))
    yield made
    await made.wal_store.close()
    await store.close()


def flush_of(writer: WalWriter, number: int, value: bytes) -> list[Buffer]:
    one = bytes(batch(value))
    index = encode_index([(TOPIC, 0, [one])])
    return [encode_flush_header(number, writer.nonce, len(one), index, 1, number), one, index]


async def write(writer: WalWriter, number: int, value: bytes = b"v") -> Outcome:
    answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    parts = flush_of(writer, number, value)
    outcome = writer.write(number, parts, sum(map(len, parts)), answer.set_result)
    return outcome if outcome is not None else await asyncio.wait_for(answer, 60)


async def test_each_flush_that_is_to_begin_a_file_does_so(logs: Logs) -> None:
    """A settling may begin while the first flush behind the last one waits for the disk: what is settled and
    what is not lie in different files all the same, because settled files are forgotten."""
    writer = await logs.create()
    keys = []
    for number in range(2):
        outcome = await write(writer, number)
        assert isinstance(outcome, Durable)
        keys.append(outcome.key)
    for number in (2, 3, 3):
        writer.rotate(number)
    for number in range(2, 5):
        outcome = await write(writer, number)
        assert isinstance(outcome, Durable)
        keys.append(outcome.key)
    assert len({keys[1], keys[2], keys[3]}) == 3
    await writer.close()
    assert await logs.wal_store.seal(WAL) == 5


async def test_what_was_written_is_scanned(logs: Logs) -> None:
    writer = await logs.create()
    for number in range(10):
        outcome = await write(writer, number, b"value %d" % number)
        assert isinstance(outcome, Durable)
    await writer.close()
    assert await logs.wal_store.seal(WAL) == 10
    assert await logs.wal_store.seal(WAL) == 10
    flushes = await logs.scan(0, 10)
    assert [flush.number for flush in flushes] == list(range(10))
    for flush in flushes:
        (block,) = iter_blocks(flush.blocks)
        (found,) = block.batches()
        stored = await logs.store.get_range(flush.key, flush.position + found.position, found.header.size)
        assert b"value %d" % flush.number in bytes(stored)
    assert [flush.number for flush in await logs.scan(4, 7)] == [4, 5, 6]
    assert await logs.scan(10, 10) == []


async def test_a_sealed_log_takes_no_more(logs: Logs) -> None:
    writer = await logs.create()
    assert isinstance(await write(writer, 0), Durable)
    assert await logs.wal_store.seal(WAL) == 1
    assert isinstance(await write(writer, 1), Fenced)
    assert isinstance(await logs.wal_store.create(WAL), Fenced)
    count = await logs.wal_store.seal(WAL)
    assert count in (1, 2), "what a fenced writer appended may be seen, or not"
    assert [flush.number for flush in await logs.scan(0, 1)] == [0]
    await writer.close()


async def test_whoever_seals_first_a_flush_is_either_acknowledged_and_counted_or_neither(logs: Logs) -> None:
    """Sealing races with writing: an acknowledged flush is in the count."""
    writer = await logs.create()
    acknowledged = 0
    sealing: asyncio.Task[int] | None = None
    for number in range(20):
        if number == 7:
            sealing = asyncio.ensure_future(logs.wal_store.seal(WAL))
        outcome = await write(writer, number)
        if not isinstance(outcome, Durable):
            break
        acknowledged = number + 1
        await asyncio.sleep(0)
    assert sealing is not None
    count = await sealing
    assert acknowledged <= count
    assert len(await logs.scan(0, count)) == count
    await writer.close()


async def test_leading_flushes_are_deleted(logs: Logs) -> None:
    writer = await logs.create()
    for number in range(12):
        await write(writer, number, b"x" * 200)
    before = len(await keys_of(logs.store, "wal/"))
    await logs.wal_store.delete_below(WAL, 8)
    assert len(await keys_of(logs.store, "wal/")) < before
    for number in range(12, 14):
        assert isinstance(await write(writer, number), Durable)
    await writer.close()
    assert await logs.wal_store.seal(WAL, 8) == 14
    assert [flush.number for flush in await logs.scan(8, 14)] == list(range(8, 14))
    with pytest.raises(StoreError):
        await logs.scan(0, 14)
    with pytest.raises(StoreError):
        await logs.scan(8, 15)
    await logs.wal_store.delete(WAL)
    assert len(await keys_of(logs.store, "wal/")) == 1, "the seal stays"


async def test_a_writer_that_slept_while_its_log_was_sealed_and_deleted_acknowledges_nothing(
    logs: Logs,
) -> None:
    writer = await logs.create()
    for number in range(3):
        assert isinstance(await write(writer, number), Durable)
    assert await logs.wal_store.seal(WAL) == 3
    await logs.wal_store.delete(WAL)
    await logs.wal_store.delete(WAL)
    assert isinstance(await write(writer, 3), Fenced)
    await writer.close()


async def test_a_log_that_was_sealed_before_it_began_and_deleted_cannot_be_begun(logs: Logs) -> None:
    assert await logs.wal_store.seal(WAL) == 0
    await logs.wal_store.delete(WAL)
    assert isinstance(await logs.wal_store.create(WAL), Fenced)


async def test_everything_settled_and_deleted_can_still_be_sealed(logs: Logs) -> None:
    """A log whose flushes were all deleted must not be sealed below what was acknowledged later."""
    writer = await logs.create()
    for number in range(5):
        await write(writer, number)
    writer.rotate(5)
    await logs.wal_store.delete_below(WAL, 5)
    sealed = await logs.wal_store.seal(WAL, 5)
    assert sealed == 5
    assert isinstance(await write(writer, 5), Fenced)
    await writer.close()


async def test_what_appears_again_below_the_beginning_is_not_the_end_of_a_log() -> None:
    """A store may carry out a write for a second time after its object was deleted: a flush, or a seal."""
    store = MemoryStore()
    logs = Logs(store, ObjectWalStore(store))
    writer = await logs.create()
    for number in range(12):
        await write(writer, number)
    again = store.objects["wal/3/17/00000000000000000003"]
    await logs.wal_store.delete_below(WAL, 8)
    assert await store.create("wal/3/17/00000000000000000003", again)
    assert await store.create("wal/3/17/00000000000000000005", SEAL)
    assert isinstance(await write(writer, 12), Durable)
    assert await logs.wal_store.seal(WAL, 8) == 13
    assert isinstance(await write(writer, 13), Fenced)
    await writer.close()


async def test_a_live_log_is_not_deleted(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    logs = Logs(store, DirectoryWalStore(store))
    writer = await logs.create()
    await write(writer, 0)
    with pytest.raises(StoreError):
        await logs.wal_store.delete(WAL)
    assert isinstance(await write(writer, 1), Durable)
    await writer.close()
    await store.close()


async def test_a_log_whose_marker_is_gone_is_sealed(tmp_path: Path) -> None:
    """A copy of a directory that was made while `open` was renamed has neither name."""
    store = DirectoryStore(str(tmp_path))
    logs = Logs(store, DirectoryWalStore(store))
    writer = await logs.create()
    await write(writer, 0)
    (tmp_path / "wal/3/17/open").unlink()
    assert isinstance(await write(writer, 1), Fenced)
    assert await logs.wal_store.seal(WAL) == 2
    assert (tmp_path / "wal/3/17/sealed").exists()
    assert isinstance(await logs.wal_store.create(WAL), Fenced)
    await writer.close()
    await store.close()


@pytest.mark.parametrize("left", [b"", bytes(3000), b"PWL"])
@pytest.mark.parametrize("sync", [False, True])
async def test_an_emptied_file_of_which_a_lease_knows_is_waited_for(
    tmp_path: Path, sync: bool, left: bytes
) -> None:
    """It is not taken for what a loss of power leaves: the lease was written in the same boot."""
    store = DirectoryStore(str(tmp_path), sync=sync)
    logs = Logs(store, DirectoryWalStore(store))
    writer = await logs.create()
    for number in range(10):
        await write(writer, number)
    await writer.close()
    (file,) = (path for path in (tmp_path / "wal/3/17").iterdir() if path.name.isdecimal())
    kept = file.read_bytes()
    file.write_bytes(left)
    assert await logs.wal_store.seal(WAL, 0, 10) == 10
    with pytest.raises(ObjectMissingError, match="flush 0 of the write-ahead log wal/3/17 is missing"):
        await logs.scan(0, 10)
    file.write_bytes(kept)
    assert [flush.damage for flush in await logs.scan(0, 10)] == [None] * 10
    await store.close()


async def test_a_file_that_a_loss_of_power_emptied_is_not_waited_for(tmp_path: Path) -> None:
    """With durability=os, after its log was sealed: the disk had not taken it, though it was told to."""
    store = DirectoryStore(str(tmp_path))
    logs = Logs(store, DirectoryWalStore(store))
    writer = await logs.create()
    for number in range(3):
        await write(writer, number)
    await writer.close()
    assert await logs.wal_store.seal(WAL, 0, 3) == 3
    (file,) = (path for path in (tmp_path / "wal/3/17").iterdir() if path.name.isdecimal())
    file.write_bytes(b"")
    later = DirectoryWalStore(store, boot=b"a later boot....")
    found = [flush async for flush in later.scan(WAL, 0, 3)]
    assert [flush.damage is not None and flush.damage.torn for flush in found] == [True] * 3
    await store.close()


@pytest.mark.parametrize("said", [0, 3])
async def test_what_a_lease_of_this_boot_knows_was_not_taken_by_a_loss_of_power(
    tmp_path: Path, said: int
) -> None:
    """The first sector of the only file is zeros, and with it the boot that wrote it."""
    store = DirectoryStore(str(tmp_path))
    wal_store = DirectoryWalStore(store)
    writer = await wal_store.create(WAL)
    assert not isinstance(writer, Fenced)
    for number in range(3):
        assert isinstance(await write(writer, number, b"v" * 600), Durable)
    await writer.close()
    path = tmp_path / "wal" / "3" / "17" / f"{0:020d}"
    path.write_bytes(bytes(512) + path.read_bytes()[512:])
    assert await wal_store.seal(WAL, 0, said) == 3
    damages = [flush.damage async for flush in wal_store.scan(WAL, 0, 3)]
    assert [damage is not None and damage.torn for damage in damages] == [not said, False, False]
    assert [damage is None for damage in damages] == [False, True, True]
    await store.close()


async def test_what_was_there_when_a_log_was_sealed_was_not_taken_by_a_loss_of_power(tmp_path: Path) -> None:
    """As long as the machine has not been started anew."""
    store = DirectoryStore(str(tmp_path))
    wal_store = DirectoryWalStore(store)
    writer = await wal_store.create(WAL)
    assert not isinstance(writer, Fenced)
    for number in range(3):
        assert isinstance(await write(writer, number, b"v" * 600), Durable)
    await writer.close()
    assert await wal_store.seal(WAL) == 3
    path = tmp_path / "wal" / "3" / "17" / f"{0:020d}"
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(ObjectMissingError, match="flush 0 "):
        [flush async for flush in wal_store.scan(WAL, 0, 3)]
    path.write_bytes(bytes(512) + whole[512:])
    damages = [flush.damage async for flush in wal_store.scan(WAL, 0, 3)]
    assert [damage is not None and not damage.torn for damage in damages] == [True, False, False]
    path.write_bytes(whole)
    assert all([flush.damage is None async for flush in wal_store.scan(WAL, 0, 3)])
    await store.close()


@pytest.mark.parametrize("sync", [False, True])
async def test_a_copy_under_another_name_is_no_part_of_a_log(tmp_path: Path, sync: bool) -> None:
    """Its name would say that hundreds of flushes were written, and none of them is there."""
    store = DirectoryStore(str(tmp_path), sync=sync)
    logs = Logs(store, DirectoryWalStore(store, file_bytes=600))
    writer = await logs.create()
    for number in range(10):
        await write(writer, number)
    await writer.close()
    first, *_, last = sorted(path for path in (tmp_path / "wal/3/17").iterdir() if path.name.isdecimal())
    for name in (f"{500:020d}", f"{int(last.name) + 1:020d}"):
        copy = shutil.copy(last, last.with_name(name))
        with pytest.raises(MisplacedFileError, match=f"{name} holds flush {int(last.name)} on of the log of"):
            await logs.wal_store.seal(WAL)
        os.unlink(copy)
    assert await logs.wal_store.seal(WAL) == 10
    kept = first.read_bytes()
    shutil.copy(last, first)
    with pytest.raises(MisplacedFileError):
        await logs.scan(0, 10)
    first.write_bytes(kept)
    assert [flush.number for flush in await logs.scan(0, 10)] == list(range(10))
    await store.close()


async def test_a_file_of_another_log_is_not_taken_for_this_one_s(tmp_path: Path) -> None:
    """All of it is whole, and nothing of it was written here: a sealer would count another log's flushes."""
    store = DirectoryStore(str(tmp_path))
    wal_store = DirectoryWalStore(store)
    paths = []
    for wal, flushes in ((WAL, 5), (WalRef(4, 18), 3)):
        writer = await wal_store.create(wal)
        assert not isinstance(writer, Fenced)
        for number in range(flushes):
            await write(writer, number)
        await writer.close()
        paths.append(tmp_path / f"wal/{wal.broker}/{wal.epoch}/{0:020d}")
    kept = paths[0].read_bytes()
    shutil.copy(paths[1], paths[0])
    with pytest.raises(MisplacedFileError, match="of the log of broker 4, epoch 18"):
        await wal_store.seal(WAL)
    paths[0].write_bytes(kept)
    assert await wal_store.seal(WAL) == 5
    await store.close()


class Mixed(MemoryStore):
    """Gives some answers that are not those of the object that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[Callable[[bytes], bytes]] = []

    def _given(self, data: bytes) -> bytes:
        return self.wrong.pop(0)(data) if self.wrong else data

    async def get(self, key: str) -> bytes | None:
        data = await super().get(key)
        return None if data is None else self._given(data)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._given(await super().get(key) or b"")[start : start + length]


def _page(data: bytes) -> bytes:
    return b"<html>back soon</html>"


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _nothing(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("times", [1, 2, 4])
async def test_a_seal_is_not_mixed_up_with_a_flush(times: int) -> None:
    """A log that is sealed once more ends where it did, whatever else is given for the seal; and a flush that
    comes as the seal does not end it."""
    store = Mixed()
    logs = ObjectWalStore(store)
    wal = WalRef(1, 1)
    writer = await logs.create(wal)
    assert not isinstance(writer, Fenced)
    for number in range(2):
        assert isinstance(await write(writer, number), Durable)
    flush = store.objects[f"wal/1/1/{2:020d}"]
    assert await logs.seal(wal) == 2
    store.wrong = [lambda data: flush] * times
    assert await logs.seal(wal) == 2
    assert store.wrong == []
    await writer.close()

    class Late(Mixed):
        """Its lists do not name what came."""

        async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
            nothing: tuple[ObjectInfo, ...] = ()
            for info in nothing:
                yield info

    late = Late()
    late.objects = {key: value for key, value in store.objects.items() if value != SEAL}
    late.wrong = [lambda data: SEAL] * times
    assert await ObjectWalStore(late).seal(wal) == 2


@pytest.mark.parametrize("kind", ["page", "half", "nothing", "another"])
async def test_what_was_mixed_up_on_its_way_is_no_damage(kind: str) -> None:
    """Damage is for ever: the partition goes on behind it, and the log is deleted."""
    store = Mixed()
    logs = ObjectWalStore(store)
    wal = WalRef(1, 1)
    writer = await logs.create(wal)
    assert not isinstance(writer, Fenced)
    for number in range(2):
        assert isinstance(await write(writer, number), Durable)
    await logs.seal(wal)
    another = store.objects[f"wal/1/1/{2:020d}"]
    wrong = {"page": _page, "half": _half, "nothing": _nothing, "another": lambda data: another}[kind]
    for times in (1, 2, 5):
        store.wrong = [wrong] * times
        (flush,) = [flush async for flush in logs.scan(wal, 0, 1)]
        assert flush.damage is None and list(iter_blocks(flush.blocks))
        assert store.wrong == []
    store.wrong = [wrong] * 100
    if kind == "another":
        # Of the right size and read twice alike: it is what is stored.
        (flush,) = [flush async for flush in logs.scan(wal, 0, 1)]
        assert flush.damage is not None and flush.damage.reason == "it says that it is flush 1"
    else:
        with pytest.raises(StoreUnavailableError, match="not as it is listed"):
            await anext(logs.scan(wal, 0, 1))
    store.wrong = []
    await writer.close()


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("start", [0, 3])
async def test_an_object_that_is_gone_is_not_the_end_of_a_log(ahead: bool, start: int) -> None:
    """Whoever began a later flush had been told that this one is durable."""
    store = MemoryStore()
    logs = Logs(store, ObjectWalStore(store))
    writer = await logs.create()
    for number in range(12):
        await write(writer, number)
    gone = store.objects.pop("wal/3/17/00000000000000000006")
    if ahead:
        await logs.wal_store.read_ahead(WAL, start)
    assert await logs.wal_store.seal(WAL, start) == 12
    assert isinstance(await write(writer, 12), Fenced)
    with pytest.raises(ObjectMissingError, match=r"flush 5 .* is missing"):
        await logs.scan(start, 12)
    store.objects["wal/3/17/00000000000000000006"] = gone
    assert [flush.number for flush in await logs.scan(start, 12)] == list(range(start, 12))
    await writer.close()


@pytest.mark.parametrize("start", [0, 3])
async def test_a_log_of_which_only_the_seal_is_left_is_not_empty(start: int) -> None:
    """To an image that is older than the settling of its flushes, they are missing."""
    store = MemoryStore()
    logs = Logs(store, ObjectWalStore(store))
    writer = await logs.create()
    for number in range(6):
        await write(writer, number)
    assert await logs.wal_store.seal(WAL) == 6
    await logs.wal_store.delete(WAL)
    left = dict(store.objects)
    assert await logs.wal_store.seal(WAL, start) == 6
    assert store.objects == left
    with pytest.raises(ObjectMissingError, match=f"flush {start} .* is missing"):
        await logs.scan(start, 6)
    await writer.close()


async def test_what_was_under_way_beyond_a_gap_does_not_count() -> None:
    """Flushes may arrive out of order. So few of them prove nothing."""
    store = MemoryStore()
    logs = Logs(store, ObjectWalStore(store))
    writer = await logs.create()
    for number in range(12):
        await write(writer, number)
    del store.objects["wal/3/17/00000000000000000009"]
    assert await logs.wal_store.seal(WAL) == 8
    await writer.close()


async def turns() -> None:
    """Let everything happen that can happen without the test."""
    for _ in range(100):
        await asyncio.sleep(0)


class SlowStore(MemoryStore):
    """Creates take as long as the test wants, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, asyncio.Future[Exception | None]] = {}

    def gate(self, number: int) -> "asyncio.Future[Exception | None]":
        key = f"wal/3/17/{number + 1:020d}"
        self.gates[key] = asyncio.get_running_loop().create_future()
        return self.gates[key]

    async def create(self, key: str, *parts: Buffer) -> bool:
        gate = self.gates.pop(key, None)
        if gate is not None:
            error = await gate
            if error is not None:
                raise error
        return await super().create(key, *parts)


async def test_flushes_under_way_are_acknowledged_in_order() -> None:
    store = SlowStore()
    logs = Logs(store, ObjectWalStore(store))
    writer = await logs.create()
    gates = [store.gate(number) for number in range(3)]
    outcomes: list[tuple[int, Outcome]] = []
    for number in range(3):
        parts = flush_of(writer, number, b"v")
        writer.write(number, parts, 0, lambda outcome, n=number: outcomes.append((n, outcome)))  # type: ignore[misc]
    gates[2].set_result(None)
    gates[1].set_result(None)
    await turns()
    assert outcomes == [] and len(store.objects) == 3
    # Sealed now, the log ends at the first number missing, whatever lies beyond.
    assert await logs.wal_store.seal(WAL) == 0
    gates[0].set_result(None)
    await turns()
    assert outcomes == [(0, Fenced())]
    assert await logs.wal_store.seal(WAL) == 0
    await writer.close()


async def test_an_object_whose_fate_is_unknown_is_tried_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.storage.wal.objects._RETRY_FIRST_SECONDS", 0.001)
    store = SlowStore()
    logs = Logs(store, ObjectWalStore(store))
    writer = await logs.create()
    store.gate(0).set_result(StoreUnavailableError("no answer"))
    assert isinstance(await write(writer, 0), Durable)
    # It was stored, and the answer lost: found again, it is ours.
    parts = flush_of(writer, 1, b"v")
    store.gate(1).set_result(StoreUnavailableError("no answer"))
    store.objects["wal/3/17/00000000000000000002"] = b"".join(parts)
    assert isinstance(await write(writer, 1), Durable)
    # Refused for good, with nothing else under way: the number is free for the next.
    store.gate(2).set_result(StoreError("denied"))
    assert isinstance(await write(writer, 2), Failed)
    assert isinstance(await write(writer, 2), Durable)
    await writer.close()
