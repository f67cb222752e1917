"""How the handlers that ask one partition for something find it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage
    from penstock.storage.ledger.ledger import Partition

ANY_EPOCH = -1
"""The leader epoch of a client that does not know one: nothing is checked."""

CATCH_UP_SECONDS_MAX = 1.0
"""How long a request waits for the newest image: many times what a store takes that works."""
_LOOKS = 10
"""Into so many parts that time is cut. A process that sleeps loses one of them, and the store has the rest to
answer in."""


async def newest_image(broker: Broker) -> ClusterImage:
    """The image after catching up with the metadata log; the one at hand if the store does not answer.

    A broker that is asked about something it does not know, or for everything there is, catches up before
    it answers: another broker may have created something a moment ago. While the store is known to be out
    nobody waits for it.
    """
    await caught_up(broker)
    return broker.image


async def caught_up(broker: Broker) -> bool:
    """Catch up with the metadata log. False if the store does not answer."""
    from penstock.cluster.metadata_log import MetadataUnavailableError

    if broker.metadata.unavailable_since is not None:
        return False
    catching = asyncio.ensure_future(broker.metadata.catch_up())
    try:
        for _ in range(_LOOKS):
            await asyncio.wait((catching,), timeout=CATCH_UP_SECONDS_MAX / _LOOKS)
            if catching.done():
                catching.result()
                return True
        return False
    except MetadataUnavailableError:
        return False
    finally:
        catching.cancel()


async def confirmed(broker: Broker) -> bool:
    """Catch up, for a reader: whether what the image then gives to this broker was its own when this was
    called. If not, somebody else may lead it, and readers should look elsewhere."""
    return await caught_up(broker) or broker.leads_surely


Asked = Iterable[tuple[str, Iterable[int]]]
"""Topics by name, each with indexes of partitions."""


class LeadershipDoubt(Exception):
    """Another broker may lead what this one leads by its image. Dispatch answers NOT_LEADER_OR_FOLLOWER."""


def ready(broker: Broker, asked: Asked) -> bool:
    """Whether everything that was asked for exists here, and is open as far as this broker leads it, which
    it does for sure."""
    if not broker.leads_surely:
        return False
    topics = broker.image.topics
    for name, indexes in asked:
        topic = topics.get(name)
        if topic is None:
            return False
        count = len(topic.partitions)
        for index in indexes:
            if index >= count or (index >= 0 and broker.is_opening(topic, index)):
                return False
    return True


async def made_ready(broker: Broker, asked: Asked) -> ClusterImage:
    """Catch up if something is unknown, wait for what is being opened: the image to answer from. Raises
    LeadershipDoubt if this broker was silent for so long that another may lead by now, and it cannot tell."""
    wanted = [(name, list(indexes)) for name, indexes in asked]
    if not ready(broker, wanted) and not await confirmed(broker):
        raise LeadershipDoubt
    if not ready(broker, wanted):
        await broker.opened()
    return broker.image


def led_partition(
    broker: Broker, image: ClusterImage, name: str, index: int, current_leader_epoch: int = ANY_EPOCH
) -> Partition | ErrorCode:
    """The partition if this broker leads it in the epoch that the client believes in, else why not."""
    topic = image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = broker.ledger.partition(topic.id, index)
    if partition is None or partition.closed:
        if broker.ledger.damaged(topic.id, index) is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if current_leader_epoch != ANY_EPOCH:
        if current_leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if current_leader_epoch > partition.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
    return partition


def epoch_at(broker: Broker, partition: Partition, offset: int) -> int:
    """The leader epoch in which the record at `offset` was written, the present one at the log's end."""
    low, high = 0, partition.leader_epoch
    while low < high:
        middle = (low + high) // 2
        if broker.ledger.end_offset_for_epoch(partition, middle).end_offset > offset:
            high = middle
        else:
            low = middle + 1
    return low
