"""Producer ids: taken from the metadata log in blocks, handed out one by one.

A block belongs to this incarnation alone, so two brokers never give out the same id. The rest of a block is
never used after the broker stops. The next block is fetched before the present one is empty, so a producer
waits for the metadata log only when very many start at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.tasks import Tasks
    from penstock.cluster.metadata_log import MetadataLog

BLOCK_SIZE = 1000
PREFETCH_BELOW = BLOCK_SIZE // 10


class ProducerIds:
    """The producer ids of one broker."""

    def __init__(self, metadata: MetadataLog, broker_id: int, broker_epoch: int, tasks: Tasks) -> None:
        self._metadata = metadata
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._tasks = tasks
        self._ids = range(0)
        self._spare = range(0)
        self._fetching: asyncio.Task[Refusal | None] | None = None

    def take(self) -> int | None:
        """An id that nobody else has, if one is at hand."""
        if not self._ids:
            self._ids, self._spare = self._spare, range(0)
        if len(self._ids) < PREFETCH_BELOW and not self._spare and self._fetching is None:
            self._fetching = self._tasks.spawn(self._fetch())
        if not self._ids:
            return None
        taken = self._ids[0]
        self._ids = self._ids[1:]
        return taken

    async def wait(self) -> int | Refusal:
        """An id that nobody else has, however long the metadata log takes; or why there is none."""
        while True:
            refusal = await self.filled()
            if refusal is not None:
                return refusal
            taken = self.take()
            if taken is not None:
                return taken

    async def filled(self) -> Refusal | None:
        """Return when an id is at hand, however long the metadata log takes; or why there is none."""
        while not self._ids and not self._spare:
            if self._fetching is None:
                self._fetching = self._tasks.spawn(self._fetch())
            refusal = await asyncio.shield(self._fetching)
            if refusal is not None:
                return refusal
        return None

    async def _fetch(self) -> Refusal | None:
        try:
            block = await self._metadata.allocate_producer_ids(
                self._broker_id, self._broker_epoch, BLOCK_SIZE
            )
        except MetadataUnavailableError:
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The metadata log cannot be written.")
        finally:
            self._fetching = None
        if isinstance(block, Refusal):
            return block
        self._spare = block
        return None
