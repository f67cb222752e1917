"""A directory whose disk hangs, cannot be read, or goes away: that costs time, and nothing looks missing."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from penstock.log.checking import Facts
from penstock.metadata.image import WalRef
from penstock.storage.settling.composing import CopyRange, compose
from penstock.storage.stores.blocking import BlockingStore
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.files import Files, store_error
from penstock.storage.stores.objects import (
    ObjectMissingError,
    Range,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnavailableError,
)
from penstock.storage.wal.directory import DirectoryWalStore, DirectoryWalWriter
from penstock.storage.wal.port import Durable, Failed
from tests.storage.faults import FaultyFiles
from tests.storage.world import keys_of


class SickFiles(Files):
    """Nothing is in the page cache; some files hang, or cannot be read."""

    def __init__(self) -> None:
        self.hanging: set[int] = set()
        self.hangs = ""
        self.healed = threading.Event()
        self.error = 0
        self.sync_error = 0
        self.names_error = 0

    def mkdir(self, path: str) -> None:
        if self.names_error:
            raise OSError(self.names_error, os.strerror(self.names_error))
        super().mkdir(path)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        if self.hangs and self.hangs in path:
            self.hanging.add(fd)
        return fd

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int) -> int:
        raise OSError(errno.EAGAIN, "not cached")

    def pread(self, fd: int, length: int, position: int) -> bytes:
        if fd in self.hanging:
            assert self.healed.wait(60)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().pread(fd, length, position)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        if self.sync_error and not path.endswith("tmp"):
            raise OSError(self.sync_error, os.strerror(self.sync_error))


@pytest.fixture
def files() -> Iterator[SickFiles]:
    made = SickFiles()
    yield made
    made.healed.set()


@pytest.fixture
async def store(tmp_path: Path, files: SickFiles) -> AsyncIterator[DirectoryStore]:
    made = DirectoryStore(str(tmp_path / "store"), sync=True, files=files)
    await made.create("meta/cluster", b"a cluster")
    yield made
    files.healed.set()
    await made.close()


async def test_reads_that_hang_hold_up_no_heartbeat(store: DirectoryStore, files: SickFiles) -> None:
    files.hangs = "segments/"
    await store.create("segments/1", b"records")
    reads = [asyncio.ensure_future(store.get_range("segments/1", 0, 7)) for _ in range(20)]
    async with asyncio.timeout(60):
        for number in range(10):
            await store.put("live/1", b"%d" % number)
            assert await store.get("live/1") == b"%d" % number
            assert await store.create(f"meta/log/{number}", b"entry")
            assert await store.create(f"segments/new/{number}", b"settled")
    assert not any(read.done() for read in reads)
    files.healed.set()
    assert await asyncio.gather(*reads) == [b"records"] * 20


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EIO, StoreUnavailableError),
        (errno.ESTALE, StoreUnavailableError),
        (errno.ETIMEDOUT, StoreUnavailableError),
        (errno.ENODEV, StoreUnavailableError),
        (errno.EREMOTEIO, StoreUnavailableError),
        (errno.EMFILE, StoreUnavailableError),
        (errno.EACCES, StoreRefusedError),
        (errno.EPERM, StoreRefusedError),
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EROFS, StoreReadOnlyError),
        (errno.ENOENT, ObjectMissingError),
        (errno.ENAMETOOLONG, StoreError),
    ],
)
def test_what_the_system_says_and_what_it_means(number: int, kind: type[StoreError]) -> None:
    assert type(store_error(OSError(number, "said"), "could not")) is kind


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT, 9999])
async def test_what_cannot_be_read_is_neither_missing_nor_damaged(
    store: DirectoryStore, files: SickFiles, number: int
) -> None:
    await store.create("k", b"contents")
    files.error = number
    for read in (store.get("k"), store.get_range("k", 0, 8)):
        with pytest.raises(StoreUnavailableError):
            await read
    files.error = 0
    assert await store.get("k") == b"contents"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
async def test_a_name_that_was_given_and_not_synced_is_in_doubt(
    store: DirectoryStore, files: SickFiles, number: int
) -> None:
    """Whatever the disk says: the name is there, so nobody may be told that nothing was done."""
    await store.create("a/before", b"x")
    files.sync_error = number
    with pytest.raises(StoreUnavailableError) as told:
        await store.create("a/k", b"mine")
    assert not isinstance(told.value, StoreRefusedError)
    files.sync_error = 0
    assert await store.get("a/k") == b"mine"


async def test_a_log_and_a_copy_that_no_directory_can_be_made_for_are_refused(
    tmp_path: Path, files: SickFiles
) -> None:
    """A broker that starts, or settles first thing, finds no tmp/ and may not make one."""
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments/1").write_bytes(b"records")
    store = DirectoryStore(str(tmp_path), files=files)
    files.names_error = errno.EACCES
    with pytest.raises(StoreRefusedError):
        await DirectoryWalStore(store).create(WalRef(1, 1))
    with pytest.raises(StoreRefusedError):
        await compose(store, "segments/2", [CopyRange("segments/1", 0, 7, 0, 0, Facts((), 0))], b"")
    await store.close()


async def test_a_file_of_a_log_that_could_not_be_begun_is_not_left_behind(tmp_path: Path) -> None:
    """The flush may be written to the file before it, when there is space again."""
    files = FaultyFiles()
    store = DirectoryStore(str(tmp_path), files=files)
    writer = await DirectoryWalStore(store).create(WalRef(1, 1))
    assert isinstance(writer, DirectoryWalWriter)
    assert isinstance(writer.write(0, [b"first"], 5, lambda _: None), Durable)
    writer.rotate(1)
    files.bytes_left = 5
    assert isinstance(writer.write(1, [b"second"], 6, lambda _: None), Failed)
    assert [path.name for path in (tmp_path / "wal/1/1").glob("0*")] == ["0" * 20]
    await writer.close()
    await store.close()


async def test_a_disk_that_went_away_is_not_an_empty_store(store: DirectoryStore, tmp_path: Path) -> None:
    """What is seen then is the directory below the mount, or nothing."""
    await store.create("segments/1", b"records")
    blocking = BlockingStore(store.root)
    blocking.store.require_disk()  # type: ignore[attr-defined]
    (tmp_path / "store").rename(tmp_path / "unplugged")
    for below in (False, True):
        if below:
            (tmp_path / "store").mkdir()
        for operation in (
            store.get("segments/1"),
            store.get("meta/log/1"),
            store.get_range("segments/1", 0, 1),
            store.create("meta/log/1", b"entry"),
            store.put("live/1", b"lease"),
            store.delete("segments/1"),
            keys_of(store, "segments/"),
        ):
            with pytest.raises(StoreUnavailableError, match="is its disk there"):
                await operation
        with pytest.raises(StoreUnavailableError):
            blocking.read_range(Range("segments/1", 0, 1))
        assert list((tmp_path / "store").rglob("*")) == [] if below else not (tmp_path / "store").exists()
    (tmp_path / "store").rmdir()
    (tmp_path / "unplugged").rename(tmp_path / "store")
    assert await store.get("segments/1") == b"records"
    assert await store.create("meta/log/1", b"entry")
    blocking.close()


async def test_a_store_that_no_cluster_lives_in_yet_is_empty(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "new"))
    assert await store.get("meta/cluster") is None
    assert await keys_of(store) == []
    assert await store.create("meta/cluster", b"a cluster")
    await store.close()
