"""Records of partitions, asked of whoever leads them."""

from __future__ import annotations

from penstock.client import AnswerError, Client
from penstock.wire.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

FETCH_BYTES = 4 * 1024 * 1024


def fetch(
    client: Client, topic: str, partition: int, position: int, wait_ms: int, *, committed: bool = False
) -> PartitionData:
    """Ask whoever leads the partition for what is there from `position` on."""
    leader = client.leader(topic, partition)
    wanted = FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=int(committed),
        topics=[FetchTopic(topic=topic, topic_id=client.topic_id(topic), partitions=[wanted])],
    )
    answer = leader.ask(request, FetchResponse)
    data = answer.responses[0].partitions[0]
    if answer.error_code or data.error_code:
        code = answer.error_code or data.error_code
        raise AnswerError(code, f"Reading partition {partition} of {topic!r}")
    return data
