"""Creates topics, for CreateTopics, for Metadata of an unknown name, and for the internal topics.

All topics of one call become one entry of the metadata log. Each is decided against the image that the ones
before it leave, so two new topics of one call cannot collide and their leaders are spread together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.entropy import Entropy, uuid4
from penstock.metadata.commands import CreateTopic
from penstock.metadata.image import OFFSETS_TOPIC, TOPIC_CONFIG, TRANSACTIONS_TOPIC, fold_name, has_fold
from penstock.metadata.names import check_new_topic_name
from penstock.metadata.placement import (
    PARTITIONS_PER_REQUEST_MAX,
    capped_factor,
    manual_orders,
    place,
)
from penstock.metadata.preconditions import check
from penstock.metadata.refusal import Refusal
from penstock.settings.topics import SEGMENT_BYTES_MIN
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.security.quotas import MutationQuota
    from penstock.metadata.image import ClusterImage
    from penstock.settings import Settings

DEFAULT = -1
"""The number of partitions or replicas of who leaves it to the broker."""

OVER_QUOTA = Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
TIMED_OUT = Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata log did not take the change in time.")


class NewTopic(NamedTuple):
    """A topic to be. With `assignments` (partition index and brokers, in order) the numbers are DEFAULT."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: Mapping[str, str | None] = {}


Outcome = CreateTopic | Refusal


class Creation:
    """Topics to be created together, and the decision against the last image that was tried."""

    def __init__(
        self, broker: Broker, topics: Sequence[NewTopic], quota: MutationQuota | None = None
    ) -> None:
        self._broker = broker
        self._quota = quota
        self._topics = topics
        # Made once: an id does not change when the topics are decided upon again.
        self._ids = [new_topic_id(broker.entropy) for _ in topics]
        self.plans: dict[str, Outcome] = {}

    def decide(self, image: ClusterImage) -> list[CreateTopic]:
        """The commands; run again whenever somebody else changed the cluster first."""
        self.plans = {}
        commands = []
        folded: dict[str, str] = {}
        for topic, topic_id in zip(self._topics, self._ids, strict=True):
            planned = _collision(folded, topic.name) or plan(self._broker, image, topic, topic_id)
            if isinstance(planned, CreateTopic) and self._quota is not None:
                fits = self._quota.take(topic.name, len(planned.replicas))
                planned = planned if fits else OVER_QUOTA
            self.plans[topic.name] = planned
            if isinstance(planned, CreateTopic):
                commands.append(planned)
                image = with_leaders(image, planned.replicas)
                if has_fold(topic.name):
                    folded[fold_name(topic.name)] = topic.name
        return commands

    def refuse(self, refusal: Refusal) -> None:
        """What was planned could not be carried out."""
        self.plans.update(
            {name: refusal for name, found in self.plans.items() if isinstance(found, CreateTopic)}
        )


async def create_automatically(
    broker: Broker, names: Iterable[str]
) -> tuple[ClusterImage, dict[str, Refusal]]:
    """Create topics that a client asked for by name alone: the image that has them, and what went wrong.

    A topic that somebody else created meanwhile is as good as one that was created here. More partitions
    than CreateTopics would create at once are not created either: the names stay unknown.
    """
    topics = [automatic(broker.image, broker.settings, name) for name in names]
    if partition_count(broker.settings, topics) > PARTITIONS_PER_REQUEST_MAX:
        return broker.image, {}
    creation = Creation(broker, topics)
    try:
        outcome = await broker.metadata.propose(creation.decide)
    except MetadataUnavailableError:
        outcome = TIMED_OUT
    if isinstance(outcome, Refusal):
        creation.refuse(outcome)
        outcome = broker.image
    refusals = {
        name: found
        for name, found in creation.plans.items()
        if isinstance(found, Refusal) and name not in outcome.topics
    }
    return outcome, refusals


def automatic(image: ClusterImage, settings: Settings, name: str) -> NewTopic:
    """What a topic is created with when nobody said: the defaults, or what an internal topic needs."""
    if name == OFFSETS_TOPIC:
        return NewTopic(
            name,
            settings.offsets_topic_num_partitions,
            capped_factor(image, settings.offsets_topic_replication_factor),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": _segment_bytes(settings.offsets_topic_segment_bytes),
            },
        )
    if name == TRANSACTIONS_TOPIC:
        return NewTopic(
            name,
            settings.transaction_state_log_num_partitions,
            capped_factor(image, settings.transaction_state_log_replication_factor),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": _segment_bytes(settings.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
    return NewTopic(name)


def _segment_bytes(chosen: int) -> str:
    """A broker may be told of smaller segments than topics may have. The topic must come to be all the same:
    without it there is never a coordinator."""
    return str(max(chosen, SEGMENT_BYTES_MIN))


def plan(broker: Broker, image: ClusterImage, topic: NewTopic, topic_id: bytes) -> Outcome:
    """The command that creates `topic`, or why there is none: Kafka's checks, in Kafka's order."""
    settings = broker.settings
    refusal = check_new_topic_name(image, topic.name) or _check_configs(broker, image, topic)
    refusal = refusal or _check_numbers(topic)
    if refusal is not None:
        return refusal
    if topic.assignments:
        orders = manual_orders(image, dict(topic.assignments))
    else:
        defaults = (settings.num_partitions, settings.default_replication_factor)
        orders = place(image, topic.partitions, topic.replication_factor, defaults=defaults)
    if isinstance(orders, Refusal):
        return orders
    command = CreateTopic(
        topic_id=topic_id,
        name=topic.name,
        replicas=orders,
        configs={name: value for name, value in topic.configs.items() if value is not None},
        pinned=bool(topic.assignments),
    )
    return check(image, command) or command


def partition_count(settings: Settings, topics: Iterable[NewTopic]) -> int:
    """How many partitions the topics ask for, as far as their numbers make sense."""
    count = 0
    for topic in topics:
        if topic.assignments:
            count += len(topic.assignments)
        else:
            count += settings.num_partitions if topic.partitions == DEFAULT else max(0, topic.partitions)
    return count


def with_leaders(image: ClusterImage, orders: Iterable[tuple[int, ...]]) -> ClusterImage:
    """The image as placement will see it once the first broker of each of these orders leads."""
    counts = Counter(image.leader_counts)
    counts.update(order[0] for order in orders)
    return replace(image, leader_counts=dict(counts))


def new_topic_id(entropy: Entropy) -> bytes:
    """A random UUID whose text form does not begin with '-', which tools take for an option."""
    while True:
        raw = uuid4(entropy)
        if raw[0] >> 2 != 62:
            return raw


def _collision(folded: Mapping[str, str], name: str) -> Refusal | None:
    other = folded.get(fold_name(name)) if has_fold(name) else None
    if other is None:
        return None
    message = f"Topic '{name}' collides with existing topic: {other}"
    return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _check_configs(broker: Broker, image: ClusterImage, topic: NewTopic) -> Refusal | None:
    if not topic.configs:
        return None
    # Most topics are created without settings, so the definitions are not loaded for them.
    from penstock.metadata.config_changes import problem_code, settings_problem

    values = {name: value for name, value in topic.configs.items() if value is not None}
    if len(values) < len(topic.configs):
        names = ",".join(name for name in topic.configs if name not in values)
        message = f"Null value not supported for topic configs: {names}"
        return Refusal(ErrorCode.INVALID_CONFIG, message)
    defaults = broker.services.topic_configs.get(image, "")
    problem = settings_problem(TOPIC_CONFIG, values, defaults)
    return None if problem is None else Refusal(problem_code(TOPIC_CONFIG), problem)


def _check_numbers(topic: NewTopic) -> Refusal | None:
    if not topic.assignments:
        return None
    if topic.replication_factor != DEFAULT:
        message = "A manual partition assignment was specified, but replication factor was not set to -1."
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    if topic.partitions != DEFAULT:
        message = "A manual partition assignment was specified, but numPartitions was not set to -1."
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    seen: set[int] = set()
    for index, _brokers in topic.assignments:
        if index in seen:
            message = f"Found multiple manual partition assignments for partition {index}"
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        seen.add(index)
    return None
