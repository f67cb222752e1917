"""Recovers partitions that are led here and not open yet, again and again until the store gives them.

A recovery opens all partitions that it can (`recovery`). A refused one waits and is tried again, beside
partitions that come later. No partition waits for another that the store does not give.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.clock import Clock
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.storage.ledger.recovery import Opening, Recovery
from penstock.storage.partitions.partition import Partition
from penstock.storage.stores.objects import DamagedObjectError, StoreError

logger = logging.getLogger(__name__)

_RETRY_FIRST_SECONDS = 0.1
_RETRY_MAX_SECONDS = 5.0
_TELL_SECONDS = 30.0


class _Refused(NamedTuple):
    """A partition that could not be opened, and how it is opened the next time."""

    key: PartitionKey
    fresh: Partition
    error: StoreError


class Takeover:
    def __init__(
        self,
        recovery: Recovery,
        clock: Clock,
        image: Callable[[], ClusterImage],
        on_open: Callable[[PartitionKey, Partition], None],
    ) -> None:
        """`on_open` is called with each partition that is open now."""
        self.waiting: dict[PartitionKey, Partition] = {}
        """Led here, and not open. Whoever adds one here calls `begin` next."""
        self._recovery = recovery
        self._clock = clock
        self._image = image
        self._on_open = on_open
        self._damaged: dict[PartitionKey, DamagedObjectError] = {}
        self._refusals: dict[PartitionKey, StoreError] = {}
        """Why each of those that wait was not opened at the last try."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._untried: set[PartitionKey] = set()
        """Of those that wait: nobody tried to open them yet."""
        self._tried = asyncio.Event()

    def begin(self, keys: Sequence[PartitionKey]) -> None:
        """Open these."""
        self._untried.update(keys)
        self._tried.clear()
        task = asyncio.get_running_loop().create_task(self._recover(keys), name="recovery")
        self._tasks[task] = None
        task.add_done_callback(partial(self._recovered, keys))

    def drop(self, key: PartitionKey) -> None:
        """The partition is led here no more, or under another epoch."""
        self.waiting.pop(key, None)
        self._damaged.pop(key, None)
        self._refusals.pop(key, None)
        self._was_tried(key)

    def refusal(self, key: PartitionKey) -> StoreError | None:
        """Why the store does not give a partition: an object that it needs is damaged, not there or refused.
        None while nobody tried."""
        return self._refusals.get(key)

    def damage(self, key: PartitionKey) -> DamagedObjectError | None:
        """Why a partition cannot be opened, if that is because its manifest is provably not what was
        written."""
        return self._damaged.get(key)

    async def tried(self) -> None:
        """Wait until everything is open, or was refused once."""
        while self._untried:
            await self._tried.wait()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _recovered(self, keys: Sequence[PartitionKey], task: asyncio.Task[None]) -> None:
        """Nobody waits for a recovery that ended, however it did."""
        self._tasks.pop(task)
        for key in keys:
            self._was_tried(key)

    async def _recover(self, keys: Sequence[PartitionKey]) -> None:
        """Open partitions, those that the store does not give again and again until it does. What is to be
        opened later does not wait for them."""
        waiting = {key: self.waiting[key] for key in keys if key in self.waiting}
        pause = _RETRY_FIRST_SECONDS
        told_at = -_TELL_SECONDS
        while waiting:
            refused = await self._try(waiting)
            now = self._clock.monotonic()
            if refused and now - told_at >= _TELL_SECONDS:
                told_at = now
                logger.warning(
                    "partitions could not be opened yet count=%d: %s", len(refused), refused[0].error
                )
            if refused:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _RETRY_MAX_SECONDS)
            # Whoever is led no more, or under another epoch, is not waited for here.
            waiting = {one.key: one.fresh for one in refused if self.waiting.get(one.key) is one.fresh}

    async def _try(self, waiting: dict[PartitionKey, Partition]) -> list[_Refused]:
        """Those that could not be opened."""
        recovery = self._recovery
        image = self._image()
        openings = []
        for key, partition in waiting.items():
            info = image.partition(*key)
            assert info is not None, "what is not led any more was taken out"
            openings.append(Opening(partition, info))
        before = recovery.logs_scanned, recovery.flushes_scanned
        began = self._clock.monotonic()
        refused: list[_Refused] = []
        await recovery.open(openings, image, partial(self._on_opened, refused))
        if len(refused) < len(openings):
            logger.info(
                "opened partitions count=%d logs=%d flushes=%d seconds=%.3f",
                len(openings) - len(refused),
                recovery.logs_scanned - before[0],
                recovery.flushes_scanned - before[1],
                self._clock.monotonic() - began,
            )
        return refused

    def _on_opened(self, refused: list[_Refused], opening: Opening, error: StoreError | None) -> None:
        partition = opening.partition
        key = (partition.topic_id, partition.index)
        if self.waiting.get(key) is not partition:
            return  # Led no more, or under another epoch.
        if error is not None:
            refused.append(_Refused(key, self._begin_again(key, partition), error))
            self._refusals[key] = error
            self._note_damage(key, partition, error)
        else:
            del self.waiting[key]
            self._damaged.pop(key, None)
            self._refusals.pop(key, None)
            self._on_open(key, partition)
        self._was_tried(key)

    def _note_damage(self, key: PartitionKey, partition: Partition, error: StoreError) -> None:
        if not isinstance(error, DamagedObjectError):
            self._damaged.pop(key, None)
            return
        if key not in self._damaged:
            logger.error(
                "a partition cannot be opened topic=%s partition=%d: %s",
                partition.topic,
                partition.index,
                error,
            )
        self._damaged[key] = error

    def _begin_again(self, key: PartitionKey, partition: Partition) -> Partition:
        fresh = Partition(partition.topic_id, partition.topic, partition.index, partition.leader_epoch)
        fresh.wals = partition.wals
        fresh.policy = partition.policy
        fresh.log_append_time = partition.log_append_time
        self.waiting[key] = fresh
        return fresh

    def _was_tried(self, key: PartitionKey) -> None:
        self._untried.discard(key)
        if not self._untried:
            self._tried.set()
