"""CreatePartitions 0-3: more partitions for existing topics (KIP-195).

- `count` is how many the topic is to have: INVALID_PARTITIONS unless that is more than it has.
  UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist.
- `assignments`, if not null, names the brokers of each new partition: INVALID_REPLICA_ASSIGNMENT if their
  number, the brokers or the replication factor do not fit.
- More than 10,000 new partitions in one topic is POLICY_VIOLATION.
- INVALID_PARTITIONS for the topics of the coordinators. A group or a transactional id is found by a hash over
  the number of partitions: with another one, committed offsets and open transactions would not be found any
  more. Kafka accepts the request, goes on with the old number, and loses sight of them at its next start.
- A topic that is named twice is INVALID_REQUEST, answered once.
- `validate_only` decides and changes nothing. A timeout that is not positive is REQUEST_TIMED_OUT and
  nothing is done, as in Kafka.
- All topics of a request are changed by one entry of the metadata log.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.broker.rights import ALTER_TOPIC
from penstock.broker.topics.creating import with_leaders
from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.metadata.commands import CreatePartitions
from penstock.metadata.placement import more_partitions
from penstock.metadata.refusal import Refusal
from penstock.wire.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

Outcomes = dict[str, Refusal | None]


async def handle(
    broker: Broker, request: Request, message: CreatePartitionsRequest, permit: Permit
) -> CreatePartitionsResponse:
    if message.timeout_ms <= 0:
        return refused(message, ErrorCode.REQUEST_TIMED_OUT)
    outcomes: Outcomes = {}
    asked: list[CreatePartitionsTopic] = []
    counts = Counter(topic.name for topic in message.topics)
    for topic in message.topics:
        if counts[topic.name] > 1:
            outcomes[topic.name] = Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif not permit.allows(ALTER_TOPIC, topic.name):
            outcomes[topic.name] = Refusal(ALTER_TOPIC.code, "")
        else:
            asked.append(topic)

    quota = None if broker.quotas is None or message.validate_only else broker.quotas.mutations(request)

    def decide(image: ClusterImage) -> list[CreatePartitions]:
        commands = []
        for topic in asked:
            plan = _plan(image, topic)
            if (
                quota is not None
                and isinstance(plan, CreatePartitions)
                and not quota.take(topic.name, len(plan.replicas))
            ):
                plan = Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "")
            outcomes[topic.name] = plan if isinstance(plan, Refusal) else None
            if isinstance(plan, CreatePartitions):
                commands.append(plan)
                image = with_leaders(image, plan.replicas)
        return commands

    try:
        if message.validate_only:
            decide(await broker.metadata.catch_up())
        else:
            outcome = await broker.metadata.propose(decide)
            if isinstance(outcome, Refusal):
                outcomes.update({name: outcome for name, found in outcomes.items() if found is None})
    except MetadataUnavailableError:
        return refused(message, ErrorCode.REQUEST_TIMED_OUT)
    return CreatePartitionsResponse(
        throttle_time_ms=0 if quota is None else quota.throttle(request.session),
        results=[_result(name, found) for name, found in outcomes.items()],
    )


def refused(message: CreatePartitionsRequest, code: ErrorCode) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[CreatePartitionsTopicResult(name=topic.name, error_code=code) for topic in message.topics]
    )


def _plan(image: ClusterImage, topic: CreatePartitionsTopic) -> CreatePartitions | Refusal:
    found = image.topics.get(topic.name)
    if found is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
    if found.internal:
        return Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"The number of partitions of {found.name} cannot change: it says where each group or "
            "transactional id is coordinated.",
        )
    assignments = None
    if topic.assignments is not None:
        assignments = [assignment.broker_ids for assignment in topic.assignments]
    orders = more_partitions(image, found, topic.count, assignments)
    if isinstance(orders, Refusal):
        return orders
    return CreatePartitions(topic_id=found.id, first=len(found.partitions), replicas=orders)


def _result(name: str, refusal: Refusal | None) -> CreatePartitionsTopicResult:
    if refusal is None:
        return CreatePartitionsTopicResult(name=name)
    # A message that says no more than the code is left out, as Kafka does.
    return CreatePartitionsTopicResult(
        name=name, error_code=refusal.code, error_message=refusal.message or None
    )
