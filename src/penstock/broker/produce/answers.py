"""The answers of Produce, in all versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.broker.produce.checks import Refused
from penstock.broker.topics.leaders import Leaders
from penstock.wire.api.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.wire.codec import encode
from penstock.wire.errors import ErrorCode
from penstock.wire.headers import response_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.context import Broker
    from penstock.storage.partitions.answers import Appended
    from penstock.wire.buffers import Buffer

PRODUCE = 0
LEADER_HINTS_FROM = 10

Key = tuple[bytes | str, int]
"""Topic id or name, as the request has it, and partition."""


Outcome: TypeAlias = "Appended | Refused | ErrorCode"
"""What became of a partition's records. A bare code is that of the log, which refused or failed to write."""


class Asked(NamedTuple):
    """The facts of a request that its answer needs."""

    version: int
    correlation_id: int
    listener: str


class Target(NamedTuple):
    """A partition that was asked for. The name is empty where an id is not known."""

    name: str
    topic_id: bytes
    partition: int


def is_refused(outcome: Outcome) -> bool:
    if isinstance(outcome, Refused):
        return outcome.code is not ErrorCode.NONE
    return isinstance(outcome, ErrorCode)


def encoded(
    broker: Broker, asked: Asked, targets: Mapping[Key, Target], outcomes: Mapping[Key, Outcome]
) -> list[Buffer]:
    """The whole answer: every partition that was asked for, with what became of its records."""
    leaders = Leaders(broker.image, asked.listener, broker.broker_id)
    topics: dict[bytes | str, TopicProduceResponse] = {}
    for key, target in targets.items():
        topic = topics.get(key[0])
        if topic is None:
            topic = topics[key[0]] = TopicProduceResponse(
                name=target.name, topic_id=target.topic_id, partition_responses=[]
            )
        topic.partition_responses.append(_partition(broker, asked, target, outcomes[key], leaders))
    response = ProduceResponse(
        responses=list(topics.values()),
        node_endpoints=[
            NodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in leaders.endpoints.values()
        ],
    )
    return [response_header(PRODUCE, asked.version, asked.correlation_id), encode(response, asked.version)]


def _partition(
    broker: Broker, asked: Asked, target: Target, outcome: Outcome, leaders: Leaders
) -> PartitionProduceResponse:
    if isinstance(outcome, ErrorCode):
        outcome = Refused.by_log(outcome, leads_surely=broker.leads_surely)
    if not isinstance(outcome, Refused):
        return PartitionProduceResponse(
            index=target.partition,
            base_offset=outcome.base_offset,
            log_append_time_ms=outcome.log_append_time_ms,
            log_start_offset=outcome.log_start_offset,
        )
    if outcome.code:
        broker.meters.error(PRODUCE, outcome.code)
    topic = leaders.image.topics.get(target.name)
    answer = PartitionProduceResponse(
        index=target.partition,
        error_code=outcome.code,
        base_offset=-1,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
            for index, text in outcome.record_errors
        ],
        error_message=outcome.message,
    )
    if outcome.shows_log_start and topic is not None:
        partition = broker.ledger.partition(topic.id, target.partition)
        if partition is not None:
            answer.log_start_offset = partition.log_start_offset
    if outcome.code is ErrorCode.NOT_LEADER_OR_FOLLOWER and asked.version >= LEADER_HINTS_FROM:
        leader_id, leader_epoch = leaders.elsewhere(topic, target.partition)
        answer.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
    return answer
