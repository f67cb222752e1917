from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import ObjectStore
from tests.storage.world import World


def make_store(kind: str, directory: Path) -> ObjectStore:
    match kind:
        case "os":
            return DirectoryStore(str(directory / "store"))
        case "fsync":
            return DirectoryStore(str(directory / "store"), sync=True)
        case "memory":
            return MemoryStore()
    raise AssertionError(kind)


@pytest.fixture(params=["os", "fsync", "memory"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A world on each kind of storage: appended files, the same synced, one object per flush."""
    made = World(make_store(request.param, tmp_path))
    yield made
    await made.close()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[World]:
    """A world on a local directory."""
    made = World(make_store("os", tmp_path))
    yield made
    await made.close()
