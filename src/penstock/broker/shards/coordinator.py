"""All shards of one internal topic that this broker coordinates: those whose partition it leads.

A partition that is newly led here is loaded from its first record on, and served when that is done. A
partition that is led here no more is given up at once, and waiting requests are told NOT_COORDINATOR. While a
partition is loaded, requests wait a moment and are then told COORDINATOR_LOAD_IN_PROGRESS. If the store does
not give it, that is no progress: they are told COORDINATOR_NOT_AVAILABLE until it does. An empty partition,
such as every one of a new topic, is served without delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from penstock.broker.shards.live import LiveShard, answered
from penstock.broker.shards.loading import load
from penstock.broker.tasks import Tasks
from penstock.shards.partitioner import partition_of
from penstock.shards.shard import Effects, Now, Shard, Ticket
from penstock.storage.stores.objects import StoreError
from penstock.wire.errors import ErrorCode, WireError

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.cluster.metadata_log import MetadataLog
    from penstock.metadata.image import ClusterImage, TopicInfo
    from penstock.storage.ledger.ledger import Ledger, Partition

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Shard)

LOAD_WAIT_SECONDS = 1.0
"""How long a request waits for its partition to be loaded before it is told to come again."""
LOAD_RETRY_FIRST_SECONDS = 0.2
LOAD_RETRY_MAX_SECONDS = 5.0


class LeadingBroker(Protocol):
    """The questions of a coordinator to its broker: which partitions the broker leads, and how sure
    that is."""

    broker_id: int
    clock: Clock
    ledger: Ledger
    metadata: MetadataLog

    @property
    def leads_surely(self) -> bool: ...

    async def opened(self) -> None:
        """Return when what the image gives to this broker is open, or after a while."""

    async def confirmed(self) -> bool:
        """Catch up with the metadata log: whether what the image then gives to this broker is its own."""


class Coordinator(ABC, Generic[S]):
    """A service. A subclass says which shards it coordinates."""

    def __init__(self, topic: str, broker: LeadingBroker) -> None:
        self.topic = topic
        self._broker = broker
        self._metadata = broker.metadata
        self._ledger = broker.ledger
        self._shards: dict[int, LiveShard[S]] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._refused: set[int] = set()
        """Of those that are being loaded: the store did not give their records at the last try."""
        self._tasks = Tasks()
        self._unsubscribe: Callable[[], None] | None = None

    @abstractmethod
    def new_shard(self, partition: Partition, image: ClusterImage) -> S:
        """The shard of a partition, with no record loaded."""

    @abstractmethod
    def bring_up_to_date(self, shard: S, image: ClusterImage) -> None:
        """The records are loaded; the image may have moved on meanwhile."""

    @abstractmethod
    def image_changed(self, image: ClusterImage) -> None:
        """Tell `live_shards` what they want to know of a newer image."""

    def run_errand(self, live: LiveShard[S], errand: object) -> None:
        """Begin what a shard wants done elsewhere, and tell the shard when it is over."""
        raise NotImplementedError(f"shards of {self.topic} have no errands")

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._unsubscribe = self._metadata.subscribe(self._follow)
        self._take_and_give(self._metadata.image)

    async def stop(self) -> None:
        """Whoever waits is told to look elsewhere."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self._tasks.stop()
        for live in self._shards.values():
            with contextlib.suppress(Exception):
                live.close()

    # -- requests ------------------------------------------------------------------------------------

    def call(
        self,
        key: str,
        response: type[R],
        refused: Callable[[ErrorCode], R],
        event: Callable[Concatenate[S, Now, Ticket, P], Effects],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R | Awaitable[R]:
        """Send an event to the shard that `key` belongs to. `refused` makes the answer if there is none."""
        found = self.shard(key)
        if isinstance(found, LiveShard):
            result = found.ask(event, *arguments, **options)
            if isinstance(result, Awaitable):
                return _typed(result, response)
            return answered(result, response)
        return self._call_later(key, response, refused, event, *arguments, **options)

    async def _call_later(
        self,
        key: str,
        response: type[R],
        refused: Callable[[ErrorCode], R],
        event: Callable[Concatenate[S, Now, Ticket, P], Effects],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R:
        found = await self.found(key)
        if isinstance(found, ErrorCode):
            return refused(found)
        result = found.ask(event, *arguments, **options)
        return answered(await result if isinstance(result, Awaitable) else result, response)

    def shard(self, key: str) -> LiveShard[S] | ErrorCode:
        """The shard that `key` belongs to, or why it is not here, as far as that is sure without a look."""
        return self._shard(key) if self._broker.leads_surely else ErrorCode.NOT_COORDINATOR

    def _shard(self, key: str) -> LiveShard[S] | ErrorCode:
        topic = self._metadata.image.topics.get(self.topic)
        if topic is None:
            return ErrorCode.NOT_COORDINATOR
        index = partition_of(key, len(topic.partitions))
        live = self._shards.get(index)
        if live is not None and live.serves:
            return live
        if topic.partitions[index].leader != self._broker.broker_id:
            return ErrorCode.NOT_COORDINATOR
        if index in self._refused or self._ledger.refused(topic.id, index):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._begin(topic, index)
        live = self._shards.get(index)
        return live if live is not None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def found(self, key: str) -> LiveShard[S] | ErrorCode:
        """Like `shard`, after a second look at the cluster, and a short wait for what is being loaded."""
        found = self.shard(key)
        if found is ErrorCode.NOT_COORDINATOR:
            # Another broker may know better than this one: it may have sent the client here, or have taken
            # over while this one was silent.
            if not await self._broker.confirmed():
                return ErrorCode.NOT_COORDINATOR
            found = self._shard(key)
        if found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            topic = self._metadata.image.topics[self.topic]
            await self._loaded([partition_of(key, len(topic.partitions))])
            found = self._shard(key)
        return found

    async def found_together(self, keys: Sequence[str]) -> list[LiveShard[S] | ErrorCode]:
        """`found` for each of several keys, true of all at once: while one was waited for, another may have
        got a new coordinator, which knows more of it."""
        found = [await self.found(key) for key in keys]
        if len(keys) > 1:
            sure = self._broker.leads_surely or await self._broker.confirmed()
            found = [
                one if isinstance(one, ErrorCode) or (sure and one.serves) else ErrorCode.NOT_COORDINATOR
                for one in found
            ]
        return found

    async def all_shards(self) -> list[LiveShard[S]] | ErrorCode:
        """Every shard that this broker serves, once all are loaded; an error if that takes too long."""
        self._take_and_give(self._metadata.image)
        await self._loaded(list(self._loads))
        if self._loads:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return list(self.live_shards())

    async def _loaded(self, indexes: list[int]) -> None:
        tasks = [self._loads[index] for index in indexes if index in self._loads]
        if tasks:
            await asyncio.wait(tasks, timeout=LOAD_WAIT_SECONDS)

    def loaded(self, partition: Partition) -> LiveShard[S] | None:
        """The shard of a partition that is led here, if it is loaded. Also while the partition is being
        handed over: if that fails, the same shard goes on, and must know what became durable meanwhile."""
        live = self._shards.get(partition.index)
        return live if live is not None and live.partition is partition and not live.closed else None

    def live_shards(self) -> Iterator[LiveShard[S]]:
        return (live for live in self._shards.values() if live.serves)

    # -- following the cluster -----------------------------------------------------------------------

    def _follow(self, old: ClusterImage, new: ClusterImage) -> None:
        self._take_and_give(new)
        self.image_changed(new)

    def _take_and_give(self, image: ClusterImage) -> None:
        """Serve what is led here, and nothing else."""
        topic = image.topics.get(self.topic)
        for index, live in list(self._shards.items()):
            if not live.serves or topic is None or live.partition.topic_id != topic.id:
                del self._shards[index]
                live.close()
        if topic is None:
            return
        for index, info in enumerate(topic.partitions):
            if info.leader == self._broker.broker_id:
                self._begin(topic, index)

    def _begin(self, topic: TopicInfo, index: int) -> None:
        """Serve a partition: at once if it is empty, else when it has been loaded."""
        live = self._shards.get(index)
        if index in self._loads or (live is not None and live.serves):
            return
        if live is not None:
            del self._shards[index]
            live.close()
        partition = self._ledger.partition(topic.id, index)
        if partition is not None and partition.high_watermark == partition.log_start_offset:
            self._serve(self._new(partition))
            return
        task = self._tasks.spawn(self._load(topic.id, index))
        self._loads[index] = task
        task.add_done_callback(lambda _: self._ended(index))

    def _ended(self, index: int) -> None:
        """Nobody loads it any more."""
        self._loads.pop(index, None)
        self._refused.discard(index)

    def _new(self, partition: Partition) -> LiveShard[S]:
        shard = self.new_shard(partition, self._metadata.image)
        clock = self._broker.clock
        return LiveShard(shard, partition, self._ledger, clock, self._broken, self.run_errand)

    def _serve(self, live: LiveShard[S]) -> None:
        self._shards[live.partition.index] = live
        live.start()

    async def _load(self, topic_id: bytes, index: int) -> None:
        """Until it is done, or the partition is led by somebody else."""
        pause = LOAD_RETRY_FIRST_SECONDS
        while True:
            info = self._metadata.image.partition(topic_id, index)
            if info is None or info.leader != self._broker.broker_id:
                return
            partition = self._ledger.partition(topic_id, index)
            if partition is None:
                if self._ledger.damaged(topic_id, index) is not None:
                    return
                await self._broker.opened()
                partition = self._ledger.partition(topic_id, index)
            if partition is not None and await self._try_load(partition):
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LOAD_RETRY_MAX_SECONDS)

    async def _try_load(self, partition: Partition) -> bool:
        clock = self._broker.clock
        began = clock.monotonic()
        live = self._new(partition)
        index = partition.index
        try:
            count = await load(self._ledger, partition, live.shard)
        except (StoreError, WireError) as error:
            log.warning("a shard could not be loaded yet topic=%s partition=%d: %s", self.topic, index, error)
            self._refused.add(index)
            return False
        if partition.closed:
            return False
        self.bring_up_to_date(live.shard, self._metadata.image)
        self._serve(live)
        seconds = clock.monotonic() - began
        log.info(
            "loaded a shard topic=%s partition=%d records=%d seconds=%.3f", self.topic, index, count, seconds
        )
        return True

    def _broken(self, live: LiveShard[S]) -> None:
        """It is closed; the next request, or the next image, loads another."""
        index = live.partition.index
        log.error("a shard was given up, and is to be loaded anew topic=%s partition=%d", self.topic, index)
        if self._shards.get(index) is live:
            del self._shards[index]


async def _typed(waiting: Awaitable[object], response: type[R]) -> R:
    return answered(await waiting, response)
