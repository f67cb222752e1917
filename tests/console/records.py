"""Topics and records that pages are tried on."""

from __future__ import annotations

import time

from penstock.client import Client
from penstock.wire.api.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.batch import Record, build_batch


def make(client: Client, name: str, partitions: int = 1) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    (result,) = client.controller().ask(request, CreateTopicsResponse).topics
    assert not result.error_code, result


def fill(client: Client, topic: str, partition: int, count: int) -> None:
    """Write so many records, numbered from 0."""
    client.partitions(topic)
    now_ms = time.time_ns() // 1_000_000
    records = [Record(number, now_ms, b"key", b"%d" % number) for number in range(count)]
    data = TopicProduceData(
        name=topic,
        topic_id=client.topic_id(topic),
        partition_data=[PartitionProduceData(index=partition, records=bytes(build_batch(records)))],
    )
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
    (result,) = client.leader(topic, partition).ask(request, ProduceResponse).responses[0].partition_responses
    assert not result.error_code, result
