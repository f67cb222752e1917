"""AlterReplicaLogDirs 0-2: move replicas to a log directory of this broker (KIP-113).

- There is one directory, the store that the cluster shares, so a replica is where it is asked to be: NONE,
  and nothing is done. kafka-reassign-partitions asks for that when it rolls back by the file that it printed.
- Another directory is LOG_DIR_NOT_FOUND. A partition that this broker is no replica of is
  REPLICA_NOT_AVAILABLE, one that nobody knows is UNKNOWN_TOPIC_OR_PARTITION.
- Of a partition that is named twice the last directory counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.topics.replicas import log_dir
from penstock.wire.api.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request


def handle(
    broker: Broker, request: Request, message: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    image = broker.image
    place = log_dir(broker.settings.store)
    return _answer(message, lambda name, index, path: _judge(broker, image, name, index, path == place))


def refused(message: AlterReplicaLogDirsRequest, code: ErrorCode) -> AlterReplicaLogDirsResponse:
    return _answer(message, lambda _name, _index, _path: code)


def _answer(
    message: AlterReplicaLogDirsRequest, judge: Callable[[str, int, str], ErrorCode]
) -> AlterReplicaLogDirsResponse:
    wanted = {
        (topic.name, index): directory.path
        for directory in message.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for (name, index), path in wanted.items():
        told = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=judge(name, index, path))
        topics.setdefault(name, []).append(told)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )


def _judge(broker: Broker, image: ClusterImage, name: str, index: int, is_there: bool) -> ErrorCode:
    if not is_there:
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not broker.services.replicas.is_replica(image, topic.partitions[index]):
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE
