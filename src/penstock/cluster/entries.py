"""Writes entries of the metadata log: entry n is created once, and only above the floor it counts.

If the answer to a write is lost, the stored bytes tell: every entry names its author, so equal bytes are
ours. Once entry n is trimmed, its number can be created again, by a broker that slept so long that it takes n
- 1 for the end. So the writer looks at the chain of snapshots *after* it created the entry. If the floor is
not below the entry by then, the number was used before, and the entry does not count.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.clock import Clock
from penstock.cluster.snapshots import SnapshotChain, entry_key
from penstock.metadata.codec import Entry, encode_entry
from penstock.metadata.commands import AnyCommand
from penstock.storage.stores.objects import ObjectStore, StoreUnavailableError

BACKOFF_FIRST_SECONDS: Final = 0.005
BACKOFF_MAX_SECONDS: Final = 0.5


class EntryWriter:
    def __init__(
        self,
        store: ObjectStore,
        chain: SnapshotChain,
        clock: Clock,
        jitter: Callable[[], float],
        author: str,
    ) -> None:
        self.write_seconds = 0.0
        """How long the last write took."""
        self._store = store
        self._chain = chain
        self._clock = clock
        self._jitter = jitter
        self._author = author
        self._encoded = 0

    def encode(self, number: int, commands: Sequence[AnyCommand], level: int) -> bytes:
        """An entry that no other is equal to."""
        self._encoded += 1
        author = f"{self._author}-{self._encoded}"
        return encode_entry(Entry(number, author, self._clock.time_ms(), list(commands)), level)

    async def create(self, number: int, data: bytes, deadline: float) -> bool:
        """Write an entry. False if another one has that number. StoreUnavailableError if that is not known by
        the `deadline`, by the loop's clock: it may be there, or still come."""
        attempt = 0
        started = self._clock.monotonic()
        while True:
            try:
                created = await self._store.create(entry_key(number), data)
                if not created:
                    # Perhaps by our own earlier attempt, whose answer was lost.
                    created = await self._store.get(entry_key(number)) == data
                if created:
                    await self._chain.look()
                self.write_seconds = self._clock.monotonic() - started
                break
            except StoreUnavailableError:
                attempt += 1
                pause = self._backoff(attempt)
                if asyncio.get_running_loop().time() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
        if created and self._chain.floor >= number:
            # The number was used, trimmed and now created again: we were far behind, and it does not count.
            await self._store.delete(entry_key(number))
            return False
        return created

    def _backoff(self, attempt: int) -> float:
        ceiling: float = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(attempt, 16))
        return ceiling * self._jitter()

    def pause_seconds(self, attempt: int) -> float:
        """How long to wait after others were faster: in proportion to how long a write takes here, and the
        shorter, the more often it was so. Each round has a winner, so no crowd has to be thinned out."""
        return min(BACKOFF_MAX_SECONDS, self.write_seconds / attempt) * self._jitter()

    def yield_seconds(self) -> float:
        """How long a winner waits while others want to write, too. They must read its entry before they try
        again, which takes as long as two writes; if it went on at once, they would never come to it."""
        return min(BACKOFF_MAX_SECONDS, self.write_seconds * 4.0) * self._jitter()
