"""What reads as damaged is read again: it may have been hurt on its way, by a wire, a bus or a proxy.

As long as it is read differently each time, it was. What is read twice alike is what the store has, or what
somebody gives in its place. Who starts, or looks at a store, is told then. A broker that runs waits longer
before it ends (`metadata_log`).
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.metadata.codec import DamagedError
from penstock.storage.stores.objects import ObjectStore

T = TypeVar("T")

PAUSES_SECONDS: Final = (0.05, 0.5)
DIFFERENT_PAUSE_SECONDS: Final = 1.0
DIFFERENT_READS_MAX: Final = 20


class SecondLooks:
    """The looks at one thing."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._looks = 0

    def pause(self, found: bytes) -> float | None:
        """Seconds before the look after one that found these bytes damaged; None if there is to be none."""
        number, first = self._looks, len(PAUSES_SECONDS)
        self._looks += 1
        if number < first:
            self._seen.add(found)
            return PAUSES_SECONDS[number]
        if found in self._seen or number >= first + DIFFERENT_READS_MAX:
            return None
        self._seen.add(found)
        return DIFFERENT_PAUSE_SECONDS


async def get_whole(store: ObjectStore, key: str, decode: Callable[[bytes], T]) -> T | None:
    """An object; None if it is not there. DamagedError if it stays so, or another FormatError; StoreError."""
    looks = SecondLooks()
    while True:
        data = await store.get(key)
        if data is None:
            return None
        try:
            return decode(data)
        except DamagedError:
            pause = looks.pause(data)
            if pause is None:
                raise
        await asyncio.sleep(pause)
