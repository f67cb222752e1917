"""A write-ahead file loses its name while it is written: nothing is acknowledged that nobody would read."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.port import Durable, Failed, Fenced
from tests.storage.faults import FaultyFiles
from tests.storage.test_wal_behaviour import WAL, Logs, write


class Directory(Logs):
    def __init__(self, root: Path, *, sync: bool, file_bytes: int = 1 << 20) -> None:
        self.root = root
        self.files = FaultyFiles()
        store = DirectoryStore(str(root), sync=sync, files=self.files)
        super().__init__(store, DirectoryWalStore(store, file_bytes=file_bytes))

    def written(self) -> list[Path]:
        return sorted(path for path in (self.root / "wal").rglob("0*") if path.is_file())


@pytest.fixture(params=[False, True], ids=["os", "fsync"])
async def logs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Directory]:
    made = Directory(tmp_path / "store", sync=request.param)
    yield made
    await made.wal_store.close()
    await made.store.close()


def _delete(logs: Directory) -> None:
    logs.written()[-1].unlink()


def _restore(logs: Directory) -> None:
    """As tools for backups do it: by renaming."""
    path = logs.written()[-1]
    shutil.copy2(path, logs.root / "restored")
    (logs.root / "restored").rename(path)


def _replace_the_store(logs: Directory) -> None:
    copy = logs.root.with_name("copy")
    shutil.copytree(logs.root, copy)
    logs.root.rename(logs.root.with_name("original"))
    copy.rename(logs.root)


@pytest.mark.parametrize("lose", [_delete, _restore, _replace_the_store])
async def test_it_is_written_anew(
    logs: Directory, lose: Callable[[Directory], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if lose is _replace_the_store:
        monkeypatch.setattr("penstock.storage.wal.directory.LOOK_SECONDS", 0.0)
    writer = await logs.create()
    for number in range(3):
        assert isinstance(await write(writer, number), Durable)
    lose(logs)
    for number in range(3, 6):
        assert isinstance(await write(writer, number), Durable)
    assert await logs.wal_store.seal(WAL) == 6
    assert [flush.number for flush in await logs.scan(0, 6) if flush.damage is None] == list(range(6))
    await writer.close()
    assert not list((logs.root / "tmp").glob("*-*")), "something was left unfinished"


async def test_also_where_the_next_flush_begins_another_file(logs: Directory) -> None:
    writer = await logs.create()
    for number in range(3):
        assert isinstance(await write(writer, number), Durable)
    writer.rotate(3)
    _delete(logs)
    assert isinstance(await write(writer, 3), Durable)
    assert len(logs.written()) == 2
    assert await logs.wal_store.seal(WAL) == 4
    assert len(await logs.scan(0, 4)) == 4
    await writer.close()


async def test_nothing_is_acknowledged_where_it_cannot_be(logs: Directory) -> None:
    """A directory in its place cannot be replaced; when it is gone, all is written."""
    writer = await logs.create()
    for number in range(3):
        assert isinstance(await write(writer, number), Durable)
    path = logs.written()[-1]
    path.unlink()
    path.mkdir()
    (path / "kept").touch()
    for _attempt in range(2):
        outcome = await write(writer, 3)
        assert isinstance(outcome, Failed)
        assert not outcome.fatal
    (path / "kept").unlink()
    path.rmdir()
    assert isinstance(await write(writer, 3, b"another one"), Durable)
    assert await logs.wal_store.seal(WAL) == 4
    assert [flush.number for flush in await logs.scan(0, 4) if flush.damage is None] == list(range(4))
    await writer.close()


async def test_nothing_is_acknowledged_where_there_is_no_space_for_it(logs: Directory) -> None:
    writer = await logs.create()
    for number in range(3):
        assert isinstance(await write(writer, number), Durable)
    size = logs.written()[-1].stat().st_size
    _delete(logs)
    logs.files.bytes_left = size
    assert isinstance(await write(writer, 3), Failed)
    logs.files.bytes_left = None
    assert isinstance(await write(writer, 3), Durable)
    assert await logs.wal_store.seal(WAL) == 4
    assert len(await logs.scan(0, 4)) == 4
    await writer.close()


@pytest.mark.parametrize("rotated", [False, True])
async def test_a_log_that_was_sealed_meanwhile_is_left_alone(logs: Directory, rotated: bool) -> None:
    writer = await logs.create()
    assert isinstance(await write(writer, 0), Durable)
    assert await logs.wal_store.seal(WAL) == 1
    _delete(logs)
    if rotated:
        writer.rotate(1)
    assert isinstance(await write(writer, 1), Fenced)
    assert logs.written() == []
    await writer.close()


async def test_a_second_name_is_none_that_is_lost(logs: Directory) -> None:
    """Backups link files, and so does settling."""
    writer = await logs.create()
    assert isinstance(await write(writer, 0), Durable)
    path = logs.written()[-1]
    os.link(path, logs.root / "linked")
    assert isinstance(await write(writer, 1), Durable)
    assert path.stat().st_nlink == 2
    await writer.close()
