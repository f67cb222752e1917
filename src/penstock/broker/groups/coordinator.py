"""All groups that this broker coordinates: those whose partition of `__consumer_offsets` it leads.

A partition that is newly led here is loaded from its first record on, and served when that is done; one that
is led here no more is given up at once, and whoever waits is told NOT_COORDINATOR. While a partition is
loaded, requests wait a moment and are then told COORDINATOR_LOAD_IN_PROGRESS. An empty partition, such as
every one of a new topic, is served without delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from penstock.broker.groups.live_shard import LiveShard, answered
from penstock.broker.groups.loading import load
from penstock.broker.groups.topic_changes import TopicChanges
from penstock.broker.tasks import Tasks
from penstock.broker.topics.partitions import confirmed, newest_image
from penstock.entropy import Entropy, uuid4
from penstock.groups.core import Effects, Now, Ticket
from penstock.groups.partitioner import partition_of
from penstock.groups.settings import GroupSettings
from penstock.groups.shard import GroupShard
from penstock.metadata.image import OFFSETS_TOPIC
from penstock.storage.stores.objects import StoreError
from penstock.wire.errors import ErrorCode, WireError

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage, TopicInfo
    from penstock.settings import Settings
    from penstock.storage.ledger.ledger import Partition
    from penstock.wire.schema import ApiMessage

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R", bound="ApiMessage")

LOAD_WAIT_SECONDS = 1.0
"""How long a request waits for its partition to be loaded before it is told to come again."""
LOAD_RETRY_FIRST_SECONDS = 0.2
LOAD_RETRY_MAX_SECONDS = 5.0


class GroupCoordinator:
    """The groups of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shards: dict[int, LiveShard] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._given = broker.settings
        self._settings = group_settings(broker.settings)
        self._changes = TopicChanges(broker.image)
        self._tasks = Tasks()
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._broker.metadata.subscribe(self._follow)
        self._take_and_give(self._broker.image)

    async def stop(self) -> None:
        """Whoever waits is sent elsewhere."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self._tasks.stop()
        for live in self._shards.values():
            with contextlib.suppress(Exception):
                live.close()

    # -- requests ------------------------------------------------------------------------------------

    def call(
        self,
        group_id: str,
        response: type[R],
        refused: Callable[[ErrorCode], R],
        event: Callable[Concatenate[GroupShard, Now, Ticket, P], Effects],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R | Awaitable[R]:
        """Send an event to the shard of a group. `refused` makes the answer if there is none to ask."""
        found = self.shard(group_id)
        if isinstance(found, LiveShard):
            result = found.ask(event, *arguments, **options)
            if isinstance(result, Awaitable):
                return _typed(result, response)
            return answered(result, response)
        return self._call_later(group_id, response, refused, event, *arguments, **options)

    async def _call_later(
        self,
        group_id: str,
        response: type[R],
        refused: Callable[[ErrorCode], R],
        event: Callable[Concatenate[GroupShard, Now, Ticket, P], Effects],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R:
        found = await self.found(group_id)
        if isinstance(found, ErrorCode):
            return refused(found)
        result = found.ask(event, *arguments, **options)
        return answered(await result if isinstance(result, Awaitable) else result, response)

    def shard(self, group_id: str) -> LiveShard | ErrorCode:
        """Who serves this group here, or why nobody does, as far as that is sure without a look."""
        return self._shard(group_id) if self._broker.leads_surely else ErrorCode.NOT_COORDINATOR

    def _shard(self, group_id: str) -> LiveShard | ErrorCode:
        topic = self._broker.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return ErrorCode.NOT_COORDINATOR
        index = partition_of(group_id, len(topic.partitions))
        live = self._shards.get(index)
        if live is not None and not live.closed and not live.partition.closed:
            return live
        if topic.partitions[index].leader != self._broker.broker_id:
            return ErrorCode.NOT_COORDINATOR
        if self._broker.ledger.damaged(topic.id, index) is not None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._begin(topic, index)
        live = self._shards.get(index)
        return live if live is not None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def found(self, group_id: str) -> LiveShard | ErrorCode:
        """Like `shard`, after a second look at the cluster, and a short wait for what is being loaded."""
        found = self.shard(group_id)
        if found is ErrorCode.NOT_COORDINATOR:
            # Another broker may know better than this one: it may have sent the client here, or have taken
            # over while this one was silent.
            if not await confirmed(self._broker):
                return ErrorCode.NOT_COORDINATOR
            found = self._shard(group_id)
        if found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            topic = self._broker.image.topics[OFFSETS_TOPIC]
            await self._loaded([partition_of(group_id, len(topic.partitions))])
            found = self._shard(group_id)
        return found

    async def all_shards(self) -> list[LiveShard] | ErrorCode:
        """Every shard that this broker serves, once all are loaded; an error if that takes too long."""
        await newest_image(self._broker)
        self._take_and_give(self._broker.image)
        await self._loaded(list(self._loads))
        if self._loads:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return list(self._live())

    async def _loaded(self, indexes: list[int]) -> None:
        tasks = [self._loads[index] for index in indexes if index in self._loads]
        if tasks:
            await asyncio.wait(tasks, timeout=LOAD_WAIT_SECONDS)

    def _live(self) -> Iterator[LiveShard]:
        return (live for live in self._shards.values() if not live.closed and not live.partition.closed)

    def end_transaction(self, index: int, producer_id: int, *, committed: bool) -> None:
        """The marker of a transaction became durable in this partition of the topic."""
        live = self._shards.get(index)
        if live is not None:
            live.tell(GroupShard.end_transaction, producer_id, committed=committed)

    # -- following the cluster -----------------------------------------------------------------------

    def _follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if self._broker.settings is not self._given:
            self._given = self._broker.settings
            self._settings = group_settings(self._given)
            for live in self._shards.values():
                live.shard.set_settings(self._settings)
        self._take_and_give(new)
        changed, removed = self._changes.to(new)
        for live in list(self._live()):
            live.tell(GroupShard.metadata_changed, new, changed, removed=removed)

    def _take_and_give(self, image: ClusterImage) -> None:
        """Serve what is led here, and nothing else."""
        topic = image.topics.get(OFFSETS_TOPIC)
        for index, live in list(self._shards.items()):
            if live.closed or live.partition.closed or topic is None or live.partition.topic_id != topic.id:
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
        if index in self._loads or (live is not None and not live.closed and not live.partition.closed):
            return
        if live is not None:
            del self._shards[index]
            live.close()
        partition = self._broker.ledger.partition(topic.id, index)
        if partition is not None and partition.high_watermark == partition.log_start_offset:
            self._serve(index, self._new(partition))
            return
        task = self._tasks.spawn(self._load(topic.id, index))
        self._loads[index] = task
        task.add_done_callback(lambda _: self._loads.pop(index, None))

    def _new(self, partition: Partition) -> LiveShard:
        shard = GroupShard(self._settings, self._broker.image, lambda: new_id(self._broker.entropy))
        return LiveShard(shard, partition, self._broker.ledger, self._broker.clock, self._broken)

    def _serve(self, index: int, live: LiveShard) -> None:
        self._shards[index] = live
        live.start()

    async def _load(self, topic_id: bytes, index: int) -> None:
        """Until it is done, or the partition is led by somebody else."""
        pause = LOAD_RETRY_FIRST_SECONDS
        broker = self._broker
        while True:
            info = broker.image.partition(topic_id, index)
            if info is None or info.leader != broker.broker_id:
                return
            partition = broker.ledger.partition(topic_id, index)
            if partition is None:
                if broker.ledger.damaged(topic_id, index) is not None:
                    return
                await broker.opened()
                partition = broker.ledger.partition(topic_id, index)
            if partition is not None and await self._try_load(partition):
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LOAD_RETRY_MAX_SECONDS)

    async def _try_load(self, partition: Partition) -> bool:
        began = self._broker.clock.monotonic()
        live = self._new(partition)
        try:
            count = await load(self._broker.ledger, partition, live.shard)
        except (StoreError, WireError) as error:
            log.warning("groups could not be loaded yet partition=%d: %s", partition.index, error)
            return False
        if partition.closed:
            return False
        # The image may have moved on while the records were read.
        live.shard.set_image(self._broker.image)
        self._serve(partition.index, live)
        seconds = self._broker.clock.monotonic() - began
        log.info("loaded groups partition=%d records=%d seconds=%.3f", partition.index, count, seconds)
        return True

    def _broken(self, live: LiveShard) -> None:
        """It is closed; the next request, or the next image, loads another."""
        log.error("groups are loaded anew partition=%d", live.partition.index)
        if self._shards.get(live.partition.index) is live:
            del self._shards[live.partition.index]


async def _typed(waiting: Awaitable[ApiMessage], response: type[R]) -> R:
    return answered(await waiting, response)


def group_settings(settings: Settings) -> GroupSettings:
    values = {
        name: getattr(settings, name)
        for name in GroupSettings.__struct_fields__
        if name in settings.__struct_fields__
    }
    values["group_consumer_assignors"] = tuple(
        name.strip() for name in settings.group_consumer_assignors.split(",")
    )
    return GroupSettings(**values)


def new_id(entropy: Entropy) -> str:
    """A random UUID, as text: the tail of a member id."""
    text = uuid4(entropy).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
