"""WriteTxnMarkers 1-2: end transactions in partitions that this broker leads.

- Coordinators of other brokers send it, one request for all that is to be ended here. An administrator may
  send it too, to end a transaction that hangs. It needs Alter or ClusterAction on the cluster.
- A partition is answered when its marker is durable. The markers of one request share a flush.
- Each partition has its own code (`broker.transactions.markers`): INVALID_PRODUCER_EPOCH,
  TRANSACTION_COORDINATOR_FENCED, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.
- From version 2 on (KIP-1228) a marker says the transaction version. In version 2 of transactions each end
  has an epoch of its own, and a marker of the epoch that an open transaction was written in comes too late.
- A partition of `__consumer_offsets` takes the marker while its shard is loaded, too. Kafka refuses it then.
- A producer id or an epoch below 0 is INVALID_PRODUCER_EPOCH; Kafka calls it an unexpected server error.
- A marker for no partition is left out of the answer, as Kafka's does.
- A partition that is named twice for one producer gets one marker and one answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.transactions.markers import write_markers
from penstock.transactions.ending import Ending
from penstock.transactions.transaction import Place
from penstock.wire.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    # Each begins to write before any of them waits.
    written = await asyncio.gather(
        *(write_markers(broker, _ending(marker), _places(marker)) for marker in message.markers)
    )
    return WriteTxnMarkersResponse(
        markers=[
            _result(marker, codes) for marker, codes in zip(message.markers, written, strict=True) if codes
        ]
    )


def refused(message: WriteTxnMarkersRequest, code: ErrorCode) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[_result(marker, dict.fromkeys(_places(marker), code)) for marker in message.markers]
    )


def named(_broker: Broker, message: WriteTxnMarkersRequest, version: int) -> Named:
    for marker in message.markers:
        yield from _places(marker)


def _ending(marker: WritableTxnMarker) -> Ending:
    return Ending(
        marker.producer_id,
        marker.producer_epoch,
        marker.transaction_result,
        marker.coordinator_epoch,
        marker.transaction_version,
    )


def _places(marker: WritableTxnMarker) -> dict[Place, None]:
    return dict.fromkeys(
        Place(topic.name, partition) for topic in marker.topics for partition in topic.partition_indexes
    )


def _result(marker: WritableTxnMarker, codes: Mapping[Place, ErrorCode]) -> WritableTxnMarkerResult:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for place in _places(marker):
        name, partition = place
        topic = topics.setdefault(name, WritableTxnMarkerTopicResult(name=name, partitions=[]))
        topic.partitions.append(
            WritableTxnMarkerPartitionResult(partition_index=partition, error_code=codes[place])
        )
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=list(topics.values()))
