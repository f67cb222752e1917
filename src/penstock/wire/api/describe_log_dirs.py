"""DescribeLogDirs: size of partitions per log directory of a broker."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int16, Int32, Int64, Message, String


class DescribableLogDirTopic(Message):
    topic: String = ""
    partitions: list[Int32] = []


class DescribeLogDirsRequest(ApiMessage):
    api_key = 35
    min_version = 0
    max_version = 5
    flexible_from = 2

    topics: list[DescribableLogDirTopic] | None = []


class DescribeLogDirsPartition(Message):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Message):
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Message):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[Int64, "4+", "ignorable"] = -1
    usable_bytes: Annotated[Int64, "4+", "ignorable"] = -1
    is_cordoned: Annotated[Bool, "5+", "ignorable"] = False


class DescribeLogDirsResponse(ApiMessage):
    api_key = 35
    min_version = 0
    max_version = 5
    flexible_from = 2

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, "3+", "ignorable"] = 0
    results: list[DescribeLogDirsResult] = []
