"""The store in memory: for tests and simulations."""

from collections.abc import AsyncIterator

from penstock.storage.stores.objects import DatedObject, ObjectInfo, ObjectMissingError, ObjectShortError
from penstock.wire.buffers import Buffer


class MemoryStore:
    local = None

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def create(self, key: str, *parts: Buffer) -> bool:
        if key in self.objects:
            return False
        self.objects[key] = b"".join(parts)
        return True

    async def put(self, key: str, *parts: Buffer) -> None:
        self.objects[key] = b"".join(parts)

    async def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        stored = self.objects.get(key)
        if stored is None:
            raise ObjectMissingError(f"there is no {key}")
        if start + length > len(stored):
            raise ObjectShortError(f"{key} ends before byte {start + length}")
        return stored[start : start + length]

    async def size(self, key: str) -> int | None:
        stored = self.objects.get(key)
        return len(stored) if stored is not None else None

    async def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            if key in self.objects:
                yield ObjectInfo(key, len(self.objects[key]))

    async def list_dated(self, prefix: str) -> AsyncIterator[DatedObject]:
        """Everything is as old as time."""
        async for info in self.list(prefix):
            yield DatedObject(*info, 0)

    async def close(self) -> None:
        """Nothing is held open."""
