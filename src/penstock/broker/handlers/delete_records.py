"""DeleteRecords 0-2: move the start of partitions up to an offset (KIP-107).

- `offset` -1 means the high watermark. An offset beyond the high watermark or any other negative one is
  OFFSET_OUT_OF_RANGE. One below the log start deletes nothing and is answered with the log start.
- The low watermark in the answer is the start of the log after the change was written to the metadata log,
  so records below it stay gone whichever broker leads next. Their bytes are reclaimed in the background.
- POLICY_VIOLATION for a topic that is compacted and not deleted from; INVALID_TOPIC_EXCEPTION for an
  internal topic; UNKNOWN_TOPIC_OR_PARTITION; NOT_LEADER_OR_FOLLOWER.
- Of a partition that is named twice, the last offset counts and one answer is given, as in Kafka.
- `timeout_ms` is not used: there are no followers to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import DELETE_RECORDS
from penstock.broker.topics.names import is_internal
from penstock.broker.topics.partitions import led_partition
from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.storage.stores.objects import StoreError
from penstock.wire.api.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


async def handle(
    broker: Broker, request: Request, message: DeleteRecordsRequest, permit: Permit
) -> DeleteRecordsResponse:
    wanted: dict[str, dict[int, int]] = {}
    for topic in message.topics:
        offsets = wanted.setdefault(topic.name, {})
        for partition in topic.partitions:
            offsets[partition.partition_index] = partition.offset
    image = broker.image
    topics = []
    for name, offsets in wanted.items():
        allowed = permit.allows(DELETE_RECORDS, name)
        results = []
        for index, offset in offsets.items():
            outcome: int | ErrorCode = DELETE_RECORDS.code
            if allowed:
                outcome = await _delete(broker, image, name, index, offset)
            results.append(_result(index, outcome))
        topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


def named(_broker: Broker, message: DeleteRecordsRequest, _version: int) -> Named:
    return ((topic.name, wanted.partition_index) for topic in message.topics for wanted in topic.partitions)


def refused(message: DeleteRecordsRequest, code: ErrorCode) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name, partitions=[_result(p.partition_index, code) for p in topic.partitions]
            )
            for topic in message.topics
        ]
    )


def _result(index: int, outcome: int | ErrorCode) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, ErrorCode):
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=NO_LOW_WATERMARK, error_code=outcome
        )
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=outcome)


async def _delete(
    broker: Broker, image: ClusterImage, topic: str, index: int, offset: int
) -> int | ErrorCode:
    """The low watermark after the deletion, or why there was none."""
    partition = led_partition(broker, image, topic, index)
    if isinstance(partition, ErrorCode) and partition is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return partition
    if is_internal(topic):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if isinstance(partition, ErrorCode):
        return partition
    policy = broker.services.topic_configs.get(image, topic)
    if policy.compact and not policy.delete:
        return ErrorCode.POLICY_VIOLATION
    if offset < HIGH_WATERMARK:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    try:
        return await broker.ledger.delete_records(partition, offset)
    except MetadataUnavailableError:
        return ErrorCode.REQUEST_TIMED_OUT
    except StoreError:
        return ErrorCode.KAFKA_STORAGE_ERROR
