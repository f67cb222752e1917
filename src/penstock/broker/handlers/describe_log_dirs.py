"""DescribeLogDirs 0-5: the partitions that this broker is a replica of and their sizes, with the room that is
left.

- There is one log directory: the store that the cluster shares, named by its absolute path or its URL
  (without credentials). Each replica of a partition lists it, as in Kafka, though its bytes are there once.
- `topics` null asks for all of them. Partitions that this broker is no replica of are left out, as in Kafka;
  the protocol has no place for an error there.
- Sizes are those of the records, as stored: exact on the leader, and on others what the leader last settled
  (`topics.replicas`). `offset_lag` is 0 and `is_future_key` false: nothing is copied between directories.
- Room (version 4, KIP-827) is that of the file system; -1 for an object store, which has no such number.
- `is_cordoned` (version 5, KIP-1066) is always false.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.broker.topics.replicas import is_directory, log_dir
from penstock.metadata.image import PartitionKey
from penstock.wire.api.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage, ManifestRef, PartitionInfo, TopicInfo
    from penstock.wire.exchange import Request

    Asked = list[tuple[TopicInfo, Sequence[int]]]
    Elsewhere = Mapping[PartitionKey, PartitionInfo]

UNKNOWN_BYTES = -1


def handle(
    broker: Broker, request: Request, message: DescribeLogDirsRequest
) -> DescribeLogDirsResponse | Awaitable[DescribeLogDirsResponse]:
    image = broker.image
    replicas = broker.services.replicas
    asked = _asked(image, message)
    led_elsewhere = {
        (topic.id, index): topic.partitions[index]
        for topic, indexes in asked
        for index in indexes
        if broker.ledger.partition(topic.id, index) is None
        and replicas.is_replica(image, topic.partitions[index])
    }
    unknown = replicas.unknown(led_elsewhere)
    if unknown:
        return _answer_later(broker, asked, led_elsewhere, unknown)
    return _answer(broker, asked, led_elsewhere)


def _asked(image: ClusterImage, message: DescribeLogDirsRequest) -> Asked:
    """Topics that exist, with indexes of partitions that do."""
    if message.topics is None:
        return [(topic, range(len(topic.partitions))) for topic in image.topics.values()]
    wanted: dict[str, dict[int, None]] = {}
    for one in message.topics:
        wanted.setdefault(one.topic, {}).update(dict.fromkeys(one.partitions))
    asked: Asked = []
    for name, indexes in wanted.items():
        topic = image.topics.get(name)
        if topic is not None:
            asked.append((topic, [index for index in indexes if 0 <= index < len(topic.partitions)]))
    return asked


async def _answer_later(
    broker: Broker, asked: Asked, led_elsewhere: Elsewhere, unknown: Mapping[PartitionKey, ManifestRef]
) -> DescribeLogDirsResponse:
    await broker.services.replicas.learn(unknown)
    return _answer(broker, asked, led_elsewhere)


def _answer(broker: Broker, asked: Asked, led_elsewhere: Elsewhere) -> DescribeLogDirsResponse:
    result = _room(broker.settings.store)
    topics = [_topic(broker, topic, indexes, led_elsewhere) for topic, indexes in asked]
    result.topics = [topic for topic in topics if topic.partitions]
    return DescribeLogDirsResponse(results=[result])


def refused(message: DescribeLogDirsRequest, code: ErrorCode) -> DescribeLogDirsResponse:
    """Before version 3 it cannot be said why there is nothing."""
    return DescribeLogDirsResponse(error_code=code)


def _topic(
    broker: Broker, topic: TopicInfo, indexes: Iterable[int], led_elsewhere: Elsewhere
) -> DescribeLogDirsTopic:
    replicas = broker.services.replicas
    partitions = []
    for index in indexes:
        key = (topic.id, index)
        partition = broker.ledger.partition(*key)
        if partition is not None:
            size = partition.size_bytes
        elif key in led_elsewhere:
            size = replicas.size_bytes(key, led_elsewhere[key])
        else:
            continue
        partitions.append(DescribeLogDirsPartition(partition_index=index, partition_size=size))
    return DescribeLogDirsTopic(name=topic.name, partitions=partitions)


def _room(store: str) -> DescribeLogDirsResult:
    """The store by its name, with the room in it."""
    place = log_dir(store)
    if not is_directory(store):
        return DescribeLogDirsResult(log_dir=place, total_bytes=UNKNOWN_BYTES, usable_bytes=UNKNOWN_BYTES)
    try:
        room = os.statvfs(place)
    except OSError:
        return DescribeLogDirsResult(log_dir=place, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return DescribeLogDirsResult(
        log_dir=place,
        total_bytes=room.f_blocks * room.f_frsize,
        usable_bytes=room.f_bavail * room.f_frsize,
    )
