"""Single requests for one partition, without a library: the caller gets the broker's own answer."""

import time

from penstock.client import Connection
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.batch import Record, build_batch

EARLIEST, LATEST = -2, -1
FETCH_BYTES = 4 << 20
PRODUCE_BY_NAME, FETCH_BY_NAME = 12, 12
"""The last versions that name topics and not their ids."""


def produce(
    connection: Connection,
    topic: str,
    partition: int,
    value: bytes,
    *,
    key: bytes | None = None,
    timeout_ms: int = 30_000,
    seconds: float = 40.0,
) -> tuple[int, int]:
    """One record; error code and offset."""
    record = Record(offset=0, timestamp=int(time.time() * 1000), key=key, value=value)
    part = PartitionProduceData(index=partition, records=bytes(build_batch([record])))
    data = TopicProduceData(name=topic, partition_data=[part])
    request = ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=[data])
    answer = connection.ask(request, ProduceResponse, seconds=seconds, newest=PRODUCE_BY_NAME)
    (result,) = answer.responses[0].partition_responses
    return result.error_code, result.base_offset


def fetch(
    connection: Connection, topic: str, partition: int, offset: int, *, max_wait_ms: int = 500
) -> tuple[int, bytes]:
    """Error code and batches."""
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    topics = [FetchTopic(topic=topic, partitions=[asked])]
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
    answer = connection.ask(request, FetchResponse, newest=FETCH_BY_NAME)
    if answer.error_code:
        return answer.error_code, b""
    (found,) = answer.responses[0].partitions
    return found.error_code, bytes(found.records or b"")


def bound(
    connection: Connection, topic: str, partition: int, which: int = LATEST, *, seconds: float = 30.0
) -> tuple[int, int]:
    """Error code, and where a partition ends, or begins."""
    asked = ListOffsetsPartition(partition_index=partition, timestamp=which)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    answer = connection.ask(request, ListOffsetsResponse, seconds=seconds)
    (result,) = answer.topics[0].partitions
    return result.error_code, result.offset
