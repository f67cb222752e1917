"""A file that was hurt is brought back under its name while a broker reads it."""

from pathlib import Path

import pytest

from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.objects import ObjectShortError, StoreError


async def test_one_that_gets_its_name_by_renaming_is_read(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "store"))
    await store.create("segments/1", b"as it was written")
    path = tmp_path / "store" / "segments" / "1"
    path.write_bytes(b"hurt")
    with pytest.raises(ObjectShortError):
        await store.get_range("segments/1", 0, 17)
    assert store.get_range_now("segments/1", 0, 4) == b"hurt"

    (tmp_path / "backup").write_bytes(b"as it was written")
    (tmp_path / "backup").rename(path)

    assert await store.get_range("segments/1", 0, 17) == b"as it was written"
    assert store.get_range_now("segments/1", 0, 17) == b"as it was written"
    await store.close()


async def test_a_directory_in_its_place_was_not_it(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "store"))
    path = tmp_path / "store" / "segments" / "1"
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match="Is a directory"):
        await store.get_range("segments/1", 0, 17)
    path.rmdir()
    path.write_bytes(b"as it was written")
    assert await store.get_range("segments/1", 0, 17) == b"as it was written"
    await store.close()


async def test_one_that_is_deleted_is_read_to_its_end(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "store"))
    await store.create("segments/1", b"as it was written")
    assert await store.get_range("segments/1", 0, 2) == b"as"
    (tmp_path / "store" / "segments" / "1").unlink()
    assert await store.get_range("segments/1", 0, 17) == b"as it was written"
    await store.close()
