"""One at a time for each name, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """The queues of all names that somebody waits for or is at."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        return len(self._last)

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Wait until all that asked for this name before are done."""
        before = self._last.get(name)
        own: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last[name] = own
        try:
            if before is not None:
                await asyncio.shield(before)
            yield
        finally:
            if self._last[name] is own:
                del self._last[name]
            own.set_result(None)
