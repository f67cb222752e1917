"""Writes the markers that end a transaction in the partitions that this broker leads.

A marker goes through the ledger like any batch, and is answered when it is durable. The markers of one turn
of the loop share a flush, whatever the number of partitions.

A partition of `__consumer_offsets` has a shard that knows which offsets wait for the transaction. The shard
is told in the same moment in which the marker becomes durable: no reader comes in between. A shard that is
being loaded is told nothing, because loading ends only when it has read everything durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from penstock.groups.shard import GroupShard
from penstock.log.markers import Marker, MarkerBatch, MarkerKind
from penstock.metadata.image import OFFSETS_TOPIC
from penstock.transactions.ending import Ending
from penstock.transactions.transaction import BUMPS_WITH_EACH_END, Place
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.storage.ledger.ledger import Partition
    from penstock.storage.partitions.answers import Appended

Told = Callable[[Place, ErrorCode], None]
"""Called once for each place: NONE when the marker is durable, else why it is not."""


async def write_markers(broker: Broker, ending: Ending, places: Collection[Place]) -> dict[Place, ErrorCode]:
    """End a transaction in these partitions, each with a code of its own:

    - NONE: the marker is durable, and visible to readers
    - UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR: as for records
    - INVALID_PRODUCER_EPOCH: the partition knows a later epoch of the producer, or this is a late marker
    - TRANSACTION_COORDINATOR_FENCED: the partition knows a later coordinator
    """
    codes: dict[Place, ErrorCode] = {}
    wanted = dict.fromkeys(places)  # In their order, which a set would not keep.
    if not wanted:
        return codes
    all_told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told(place: Place, code: ErrorCode) -> None:
        codes[place] = code
        if len(codes) == len(wanted) and not all_told.done():
            all_told.set_result(None)

    append_markers(broker, ending, wanted, told)
    await all_told
    return codes


def append_markers(broker: Broker, ending: Ending, places: Collection[Place], told: Told) -> None:
    """Begin to end a transaction in these partitions. No place may be named twice."""
    marker = Marker(
        MarkerKind.COMMIT if ending.committed else MarkerKind.ABORT,
        ending.coordinator_epoch,
    )
    first = MarkerBatch.of(
        marker,
        ending.producer_id,
        ending.producer_epoch,
        broker.clock.time_ms(),
        has_own_epoch=ending.version >= BUMPS_WITH_EACH_END,
    )
    for place in places:
        partition = _led(broker, place)
        if ending.producer_id < 0 or ending.producer_epoch < 0:
            partition = ErrorCode.INVALID_PRODUCER_EPOCH  # No client is given such an epoch.
        if isinstance(partition, ErrorCode):
            told(place, partition)
        else:
            done = _done(broker, ending, place, partition, told)
            broker.ledger.append(partition, first.another(), done)


def _led(broker: Broker, place: Place) -> Partition | ErrorCode:
    topic = broker.image.topics.get(place.topic)
    if topic is None or not 0 <= place.partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = broker.ledger.partition(topic.id, place.partition)
    if partition is None or partition.closed:
        refused = broker.ledger.refused(topic.id, place.partition)
        return ErrorCode.KAFKA_STORAGE_ERROR if refused else ErrorCode.NOT_LEADER_OR_FOLLOWER
    return partition


def _done(
    broker: Broker, ending: Ending, place: Place, partition: Partition, told: Told
) -> Callable[[Appended | ErrorCode], None]:
    has_shard = place.topic == OFFSETS_TOPIC

    def done(result: Appended | ErrorCode) -> None:
        if isinstance(result, ErrorCode):
            # It refuses by what it knows of the producer. If another broker may lead, that one may know more.
            told(place, result if broker.leads_surely else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if has_shard:
            live = broker.services.groups.loaded(partition)
            if live is not None:
                live.tell(GroupShard.transaction_ended, ending.producer_id, committed=ending.committed)
        told(place, ErrorCode.NONE)

    return done
