"""Keeps the ledger in step with the image: what the cluster says this broker leads is what it serves.

Images come one after the other from the metadata log; opening a partition takes time. `in_step` lets a
request that came in between wait for it, so that a client which was just told that this broker leads a
partition is not told the contrary.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.cluster.metadata_log import MetadataLog
    from penstock.metadata.image import ClusterImage
    from penstock.storage.ledger import Ledger

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
"""After a failed update of the ledger. The store is likely to be unreachable; the next try may find it."""


class Following:
    def __init__(self, metadata: MetadataLog, ledger: Ledger) -> None:
        self._metadata = metadata
        self._ledger = ledger
        self._applied = metadata.image.version
        self._news = asyncio.Event()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._unsubscribe = metadata.subscribe(self._on_image)

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        self._news.set()

    async def run(self) -> None:
        """Apply each new image to the ledger, until cancelled."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await self._apply()
        finally:
            self._unsubscribe()
            for _version, future in self._waiting:
                future.cancel()

    async def _apply(self) -> None:
        image = self._metadata.image
        while self._applied < image.version:
            try:
                await self._ledger.update(image)
            except Exception:
                log.exception("the ledger did not follow the cluster; image=%d", image.version)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._applied = image.version
                self._wake()
            image = self._metadata.image

    def _wake(self) -> None:
        still_waiting = []
        for version, future in self._waiting:
            if version > self._applied:
                still_waiting.append((version, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = still_waiting

    @property
    def behind(self) -> bool:
        """Is there an image that the ledger does not reflect yet?"""
        return self._applied < self._metadata.image.version

    async def in_step(self, seconds: float) -> None:
        """Wait until the ledger reflects the image that is newest now, or the time is over."""
        version = self._metadata.image.version
        if self._applied >= version:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((version, future))
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            log.warning("the ledger is behind the cluster; applied=%d image=%d", self._applied, version)
