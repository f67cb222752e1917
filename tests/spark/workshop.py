"""Logs made by hand: any batches, settled or not, without a broker in the way.

The metadata log and the ledger are the real ones, on a directory; nothing listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from penstock.clock import SystemClock
from penstock.cluster.metadata_log import MetadataLog
from penstock.log.policy import UNLIMITED, LogPolicy
from penstock.metadata.commands import AnyCommand, CreatePartitions, CreateTopic, DeleteTopic, RegisterBroker
from penstock.metadata.image import ClusterImage, Listener
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.holdings import DefaultPolicies, Holdings
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.settings import LedgerSettings
from penstock.storage.stores.opening import open_store
from penstock.storage.wal.opening import open_wal_store
from penstock.wire.batch import Record, build_batch
from tests.storage.world import append_ok

T = TypeVar("T")
TIME = 1_700_000_000_000
QUIET = LedgerSettings(
    settle_interval_ms=10**9,
    settle_bytes=1 << 50,
    settle_extents=1 << 50,
    retention_check_interval_ms=10**9,
    delete_delay_ms=0,
)


class KeptForever(DefaultPolicies):
    def of(self, image: ClusterImage, topic: str) -> LogPolicy:
        return LogPolicy(retention_ms=UNLIMITED, file_delete_delay_ms=0)


class Workshop:
    def __init__(self, store: str) -> None:
        self.store = store
        self._loop = asyncio.new_event_loop()
        self._topics = 0

    def __enter__(self) -> Workshop:
        self._run(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._close())
        self._loop.close()

    async def _open(self) -> None:
        clock = SystemClock()
        self._store = open_store(self.store)
        self._wals = open_wal_store(self._store)
        self._metadata = MetadataLog(self._store, clock)
        await self._metadata.open()
        await self._change(RegisterBroker(1, (Listener("PLAINTEXT", "127.0.0.1", 1),)))
        self.ledger = Ledger(
            Holdings(
                self._metadata.image.brokers[1].wal,
                self._store,
                self._wals,
                QUIET,
                clock,
                self._metadata.propose,
            ),
            KeptForever(),
        )
        await self.ledger.open(self._metadata.image)
        self._metadata.subscribe(self.ledger.follow)

    async def _close(self) -> None:
        await self.ledger.close()
        await self._metadata.close()
        await self._wals.close()
        await self._store.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(work, 120))

    async def _change(self, *commands: AnyCommand) -> ClusterImage:
        image = await self._metadata.propose(lambda _image: commands)
        assert isinstance(image, ClusterImage), image
        return image

    # What tests ask for.

    def create(self, topic: str, partitions: int = 1) -> None:
        self._topics += 1
        identity = self._topics.to_bytes(16, "big")
        self._run(self._change(CreateTopic(identity, topic, ((1,),) * partitions)))

    def grow(self, topic: str, partitions: int) -> None:
        found = self._metadata.image.topics[topic]
        more = ((1,),) * (partitions - len(found.partitions))
        self._run(self._change(CreatePartitions(found.id, len(found.partitions), more)))

    def delete(self, topic: str) -> None:
        self._run(self._change(DeleteTopic(self._metadata.image.topics[topic].id)))

    def partition(self, topic: str, index: int = 0) -> Partition:
        found = self.ledger.partition(self._metadata.image.topics[topic].id, index)
        assert found is not None
        return found

    def append(self, topic: str, *batches: bytearray, index: int = 0) -> None:
        self._run(append_ok(self.ledger, self.partition(topic, index), *batches))

    def write(self, topic: str, values: Sequence[bytes], index: int = 0, time: int = TIME) -> None:
        """Records with these values, in one batch."""
        records = [Record(at, time + at, None, value) for at, value in enumerate(values)]
        self.append(topic, build_batch(records), index=index)

    def settle(self) -> None:
        assert self._run(self.ledger.settle())

    def collect(self) -> None:
        """Delete everything that is not referred to any more."""
        self._run(self.ledger._garbage.collect(self._metadata.image))

    def delete_records(self, topic: str, offset: int, index: int = 0) -> None:
        """Advance the log's start, and drop what lies before it."""
        self._run(self.ledger.delete_records(self.partition(topic, index), offset))
        self._run(self.ledger._settler.retain())
