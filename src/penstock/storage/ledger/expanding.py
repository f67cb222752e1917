"""Expands batches that a client may have made to cost much: beside the event loop, and bounded.

A few bytes can stand for many megabytes, and for millions of records that are looked at one by one. Two
threads do such work:

- the light one does work of milliseconds: batches that expand to at most a megabyte, or to eight if their
  records are only skimmed (`broker.produce.checks`);
- the heavy one begins again with a batch that turns out to be larger.

Each expands one batch at a time. So memory is bounded by one batch of the greatest size
(`wire.batch.expanded_max`) and a small one, however many clients ask. A client with ordinary batches does not
stand in line behind a bomb. Work is done in the order of coming.
"""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.wire.errors import BatchError, ErrorCode

LIGHT_BYTES = 1024 * 1024
_SWITCH_SECONDS = 0.0005
"""How long the event loop waits for the interpreter while a thread is at work; Python's default is ten times
that. It counts only where threads compete."""

T = TypeVar("T")


class Expanders:
    def __init__(self) -> None:
        self._light: ThreadPoolExecutor | None = None
        self._heavy: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[int | None], T]) -> T:
        """The result of `work(limit)`, called in a thread. For what expands beyond a limit it raises
        BatchError with MESSAGE_TOO_LARGE, and is called once more with None: the limit that holds for all."""
        loop = asyncio.get_running_loop()
        if self._light is None:
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
            self._light = ThreadPoolExecutor(1, thread_name_prefix="penstock-expand")
        try:
            return await loop.run_in_executor(self._light, work, LIGHT_BYTES)
        except BatchError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
        if self._heavy is None:
            self._heavy = ThreadPoolExecutor(1, thread_name_prefix="penstock-expand-heavy")
        return await loop.run_in_executor(self._heavy, work, None)

    def close(self) -> None:
        """Begin nothing more. What is under way ends in its own time, which is bounded."""
        for thread in (self._light, self._heavy):
            if thread is not None:
                thread.shutdown(wait=False, cancel_futures=True)
