"""One pass of compaction over one partition: reads its segments twice and makes new ones in memory.

First the dirty part is read and its keys are collected, as many as memory allows. Then everything from the log
start up to there is gone through again, and what stays is put into groups: a group replaces some
neighbouring segments by new ones. Each group can be committed by itself, because what it leaves out is
superseded by records that are in the log. A segment that nothing is taken out of stays as it is if it is
large, and is joined with its neighbours if it is small.

Records are looked at in a thread, a window of the log at a time. A thread of pure Python keeps the event loop
from running while it holds the interpreter, so it pauses for a moment after each millisecond of work.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.clock import Clock
from penstock.log.compaction import Dirt, newest, oldest
from penstock.log.compaction_batch import BatchSweep, KeyScan, LastOf, Outcome, last_batches, place
from penstock.log.compaction_keys import LatestOffsets
from penstock.log.extents import Extents
from penstock.log.manifest import SegmentRef
from penstock.log.markers import AbortedTransaction
from penstock.log.slicing import plan_ranges
from penstock.storage.objects import StoreError
from penstock.storage.partition import Partition
from penstock.storage.reading import Reader
from penstock.storage.segment_writer import Written
from penstock.wire.batch import HEADER_SIZE, BatchHeader, read_header

WINDOW_BYTES = 2 * 1024 * 1024
"""Read at a time."""
SEGMENT_BYTES = 32 * 1024 * 1024
"""How large cleaned segments grow: they are made in memory."""
_WORK_SECONDS = 0.001
_PAUSE_SECONDS = 0.0001
_STEP_EXTENTS = 1000

Spend = Callable[[int], "AsyncWait"]
AsyncWait = asyncio.Future[None]


class Part:
    """Batches of a segment to be: in memory until they are written."""

    __slots__ = ("data", "extents", "written")

    def __init__(self) -> None:
        self.data = bytearray()
        self.extents = Extents()
        self.written: Written | None = None

    def add(self, header: BatchHeader, outcome: Outcome) -> None:
        assert outcome.batch is not None
        place(self.extents, header, outcome, len(self.data))
        self.data += outcome.batch
