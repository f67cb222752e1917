"""What is left behind on an event loop, where with nothing left nothing more can happen, and in a process."""

import asyncio
import gc
import os
import re
import sys
from collections import Counter

_DESCRIPTORS = "/dev/fd"


def left_behind() -> list[str]:
    """Other tasks than this one, and timers that have not gone off."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    timers = [one for one in loop._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
    return [*map(repr, tasks), *map(repr, timers)]


def open_descriptors() -> Counter[str]:
    """How many files, sockets and pipes this process has open, by kind; none where that is not told."""
    found: Counter[str] = Counter()
    for number in os.listdir(_DESCRIPTORS) if os.path.isdir(_DESCRIPTORS) else ():
        try:
            name = os.readlink(f"{_DESCRIPTORS}/{number}")
        except OSError:
            continue  # It was the one of the listing, or no link.
        found[re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", name.rpartition("/")[2])] += 1
    return found


def left_open(before: Counter[str], most: int) -> Counter[str]:
    """What is open beyond `before`, if that is more than `most`."""
    if open_descriptors().total() <= before.total() + most:
        return Counter()
    gc.collect()
    now = open_descriptors()
    return now - before if now.total() > before.total() + most else Counter()


def told(left: Counter[str]) -> str:
    """In one sentence, the most frequent first."""
    kinds = ", ".join(f"{count} of {kind}" for kind, count in left.most_common())
    return f"the tests of this file left {left.total()} descriptors open: {kinds}"


def close_blocking_stores() -> None:
    """Spark's side opens each store once per process, and a process of tests has a store for each."""
    reading = sys.modules.get("penstock.arrow.reading")
    for key in [key for key in getattr(reading, "_stores", ()) if key[0] == os.getpid()]:
        reading._stores.pop(key).close()  # type: ignore[union-attr]
