"""AlterReplicaLogDirs: move replicas between the log directories of one broker."""

from penstock.wire.schema import ApiMessage, Int16, Int32, Message, String


class AlterReplicaLogDirTopic(Message):
    name: String = ""
    partitions: list[Int32] = []


class AlterReplicaLogDir(Message):
    path: String = ""
    topics: list[AlterReplicaLogDirTopic] = []


class AlterReplicaLogDirsRequest(ApiMessage):
    api_key = 34
    min_version = 0
    max_version = 2
    flexible_from = 2

    dirs: list[AlterReplicaLogDir] = []


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Message):
    topic_name: String = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = []


class AlterReplicaLogDirsResponse(ApiMessage):
    api_key = 34
    min_version = 0
    max_version = 2
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []
