"""Work that goes on after the call that began it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Never, TypeVar

T = TypeVar("T")


class Tasks:
    """Coroutines at work for one owner, which waits for all of them when it stops."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[object], None] = {}
        """In the order in which they began. A set of tasks has the order of their addresses."""

    def spawn(self, work: Coroutine[object, Never, T]) -> asyncio.Task[T]:
        """Run a coroutine on this loop and keep it from being garbage collected meanwhile."""
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return task

    async def stop(self) -> None:
        """Cancel what runs, the oldest first, and return when it has ended."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
