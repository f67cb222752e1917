"""CreateTopics 0-7: create topics, all of a request by one entry of the metadata log.

- Partitions and replicas: -1 takes `num.partitions` and `default.replication.factor` (KIP-464). Or
  `assignments` names the brokers of each partition, and both numbers are -1.
- `replication_factor` is the length of the failover order; records are stored once, in the shared store,
  whatever it is. It cannot exceed the number of live brokers.
- Refused per topic, in Kafka's order and words: a name that is given twice (INVALID_REQUEST, answered
  once), that exists (TOPIC_ALREADY_EXISTS), that cannot be or that differs from another only in '.' and '_'
  (INVALID_TOPIC_EXCEPTION); null, unknown, bad or conflicting settings (INVALID_CONFIG);
  INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT. Unlike in Kafka, two new topics
  of one request may not collide with each other either.
- More than 10,000 partitions in one request is POLICY_VIOLATION for all of it.
- `validate_only` (version 1) decides and creates nothing. A timeout that is not positive is
  REQUEST_TIMED_OUT and nothing is created, as in Kafka.
- From version 5 the answer has the topic's partitions, replicas and settings (KIP-525), from 7 its id.
- When the answer says success the topic is in the metadata that every broker reads.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.broker.rights import CREATE_TOPIC, DESCRIBE_TOPIC_CONFIGS
from penstock.broker.topics.creating import Creation, NewTopic, Outcome, partition_count
from penstock.broker.topics.names import CLUSTER_METADATA_TOPIC
from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.metadata.commands import CreateTopic
from penstock.metadata.image import TOPIC_CONFIG
from penstock.metadata.placement import PARTITIONS_PER_REQUEST_MAX
from penstock.metadata.refusal import Refusal
from penstock.wire.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.metadata.config_entries import ConfigEntry
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request


CONFIGS_SINCE = 5


async def handle(
    broker: Broker, request: Request, message: CreateTopicsRequest, permit: Permit
) -> CreateTopicsResponse:
    if message.timeout_ms <= 0:
        return refused(message, ErrorCode.REQUEST_TIMED_OUT)
    outcomes = _refusals(message, permit)
    wanted = [_new_topic(topic) for topic in message.topics if topic.name not in outcomes]
    if partition_count(broker.settings, wanted) > PARTITIONS_PER_REQUEST_MAX:
        reason = "Excessively large number of partitions per request."
        return refused(message, ErrorCode.POLICY_VIOLATION, reason)
    quota = None if broker.quotas is None or message.validate_only else broker.quotas.mutations(request)
    creation = Creation(broker, wanted, quota)
    image = broker.image
    try:
        if message.validate_only:
            image = await broker.metadata.catch_up()
            creation.decide(image)
        elif wanted:
            outcome = await broker.metadata.propose(creation.decide)
            if isinstance(outcome, Refusal):
                creation.refuse(outcome)
            else:
                image = outcome
    except MetadataUnavailableError:
        return refused(message, ErrorCode.REQUEST_TIMED_OUT)
    outcomes.update(creation.plans)
    results = _Results(broker, image, request.api_version, permit)
    return CreateTopicsResponse(
        throttle_time_ms=0 if quota is None else quota.throttle(request.session),
        topics=[results.of(name, outcomes[name]) for name in dict.fromkeys(t.name for t in message.topics)],
    )


def refused(message: CreateTopicsRequest, code: ErrorCode, reason: str | None = None) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=code, error_message=reason)
            for topic in message.topics
        ]
    )


def _refusals(message: CreateTopicsRequest, permit: Permit) -> dict[str, Outcome]:
    """What is refused whatever the state of the cluster."""
    counts = Counter(topic.name for topic in message.topics)
    refusals: dict[str, Outcome] = {}
    for name, count in counts.items():
        if count > 1:
            refusals[name] = Refusal(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif name == CLUSTER_METADATA_TOPIC:
            text = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
            refusals[name] = Refusal(ErrorCode.INVALID_REQUEST, text)
        elif not permit.allows(CREATE_TOPIC, name):
            refusals[name] = Refusal(CREATE_TOPIC.code, "Authorization failed.")
    return refusals


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((part.partition_index, tuple(part.broker_ids)) for part in topic.assignments),
        # Of a setting that is given twice, the last value counts.
        {config.name: config.value for config in topic.configs},
    )


class _Results:
    """Outcomes as this version of the answer shows them."""

    def __init__(self, broker: Broker, image: ClusterImage, version: int, permit: Permit) -> None:
        self._broker = broker
        self._image = image
        self._permit = permit
        self._with_configs = version >= CONFIGS_SINCE
        self._defaults: list[ConfigEntry] | None = None

    def of(self, name: str, outcome: Outcome) -> CreatableTopicResult:
        if isinstance(outcome, Refusal):
            return CreatableTopicResult(name=name, error_code=outcome.code, error_message=outcome.message)
        result = CreatableTopicResult(name=name, topic_id=outcome.topic_id, error_message=None)
        if not self._with_configs:
            return result
        if not self._permit.sees(DESCRIBE_TOPIC_CONFIGS, name):
            result.topic_config_error_code = DESCRIBE_TOPIC_CONFIGS.code
            return result
        result.num_partitions = len(outcome.replicas)
        result.replication_factor = len(outcome.replicas[0])
        result.configs = self._configs(outcome)
        return result

    def _configs(self, command: CreateTopic) -> list[CreatableTopicConfigs]:
        """All settings by name: those that were given as they were given, the others as they hold."""
        from penstock.metadata.configs import Source

        values = {
            entry.name: CreatableTopicConfigs(
                name=entry.name, value=entry.value, config_source=self._source(entry)
            )
            for entry in self._inherited()
        }
        for name, value in command.configs.items():
            values[name] = CreatableTopicConfigs(name=name, value=value, config_source=Source.TOPIC)
        return [values[name] for name in sorted(values)]

    def _inherited(self) -> list[ConfigEntry]:
        """What holds for a topic that sets nothing: no topic is called ""."""
        if self._defaults is None:
            from penstock.metadata.config_entries import describe_topic

            broker = self._broker
            self._defaults = describe_topic(self._image, "", broker.broker_id, broker.settings.given)
        return self._defaults

    def _source(self, entry: ConfigEntry) -> int:
        """Other than DescribeConfigs, this names a setting in other units (hours for ms) as a source."""
        from penstock.metadata.configs import Source, definitions

        if entry.source is Source.DEFAULT:
            synonyms = definitions(TOPIC_CONFIG)[entry.name].synonyms
            if any(synonym in self._broker.settings.given for synonym in synonyms):
                return Source.STATIC_BROKER
        return entry.source
