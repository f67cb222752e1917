"""DescribeLogDirs 0-5: the partitions that this broker leads and their sizes, with the room that is left.

- There is one log directory: the store that the cluster shares, named by its absolute path or its URL
  (without credentials). Its partitions are those that this broker leads, so that the answers of all
  brokers together name each partition once.
- `topics` null asks for all of them. What this broker does not lead is left out, as in Kafka; the protocol
  has no place for an error there.
- Sizes are those of the records, as stored. `offset_lag` is 0 and `is_future_key` false: nothing is copied
  between directories.
- Room (version 4, KIP-827) is that of the file system; -1 for an object store, which has no such number.
- `is_cordoned` (version 5, KIP-1066) is always false.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
    from penstock.metadata.image import TopicInfo
    from penstock.wire.exchange import Request

UNKNOWN_BYTES = -1


def handle(broker: Broker, request: Request, message: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    image = broker.image
    topics = []
    if message.topics is None:
        for topic in image.topics.values():
            topics.append(_topic(broker, topic, range(len(topic.partitions))))
    else:
        wanted: dict[str, dict[int, None]] = {}
        for asked in message.topics:
            wanted.setdefault(asked.topic, {}).update(dict.fromkeys(asked.partitions))
        for name, indexes in wanted.items():
            found = image.topics.get(name)
            if found is not None:
                topics.append(_topic(broker, found, indexes))
    result = _room(broker.settings.store)
    result.topics = [topic for topic in topics if topic.partitions]
    return DescribeLogDirsResponse(results=[result])


def _topic(broker: Broker, topic: TopicInfo, indexes: range | dict[int, None]) -> DescribeLogDirsTopic:
    found = ((index, broker.ledger.partition(topic.id, index)) for index in indexes)
    return DescribeLogDirsTopic(
        name=topic.name,
        partitions=[
            DescribeLogDirsPartition(partition_index=index, partition_size=partition.size_bytes)
            for index, partition in found
            if partition is not None
        ],
    )


def _room(store: str) -> DescribeLogDirsResult:
    """The store by its name, with the room in it."""
    scheme, separator, rest = store.partition("://")
    if separator and scheme != "file":
        place = scheme + separator + rest.rpartition("@")[2]
        return DescribeLogDirsResult(log_dir=place, total_bytes=UNKNOWN_BYTES, usable_bytes=UNKNOWN_BYTES)
    path = os.path.abspath(rest if separator else store)
    try:
        room = os.statvfs(path)
    except OSError:
        return DescribeLogDirsResult(log_dir=path, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return DescribeLogDirsResult(
        log_dir=path,
        total_bytes=room.f_blocks * room.f_frsize,
        usable_bytes=room.f_bavail * room.f_frsize,
    )
