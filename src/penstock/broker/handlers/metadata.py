"""Metadata 0-13: brokers, controller, topics, partitions and their leaders.

- Topics: null asks for all of them (an empty list does so in version 0, and for none from version 1);
  names from version 0; ids from version 12 (KIP-516). An entry with an id is looked up by the id, whatever
  its name. Repeated entries are answered once. Versions 10 and 11 carry ids in requests but may not use
  them: INVALID_REQUEST for the whole request, as for an entry that has neither a name nor an id.
- A name that is unknown is looked for again in the newest image before the answer says so. If the request
  allows it (always below version 4) and `auto.create.topics.enable` is set, it is created, and the answer
  has its partitions at once. Kafka creates it after an answer of UNKNOWN_TOPIC_OR_PARTITION; a client
  cannot tell this from a topic that somebody created just before it asked.
- Errors: INVALID_TOPIC_EXCEPTION for a name that cannot be, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID
  (with a null name); per partition LEADER_NOT_AVAILABLE, LISTENER_NOT_FOUND (from version 6), and in
  version 0 REPLICA_NOT_AVAILABLE, whose replica lists hold only live brokers.
- A request for all topics, or for none, is answered from the newest image too, so that a topic created
  through one broker is listed by the others at once. If the store does not answer, from the one at hand.
- A broker that could neither renew its lease nor look at the log for a session time-out may not lead its
  partitions any more: they are LEADER_NOT_AVAILABLE, so that clients ask elsewhere.
- Authorised operations of topics (from version 8) and of the cluster (versions 8 to 10), if asked for.
- Brokers, controller, leaders and replicas are computed from one image. An answer that needed nothing but
  the image is encoded once per image, version and question, and kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.operations import NOT_ASKED, cluster_operations, topic_operations
from penstock.broker.rights import CREATE_TOPIC, DESCRIBE_TOPIC, Permit
from penstock.broker.topics.names import is_internal
from penstock.broker.topics.placements import Placements
from penstock.metadata.image import NO_LEADER
from penstock.metadata.names import topic_name_problem
from penstock.wire.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.codec import encode
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.topics.kept_answers import Key
    from penstock.metadata.image import ClusterImage, TopicInfo
    from penstock.metadata.refusal import Refusal
    from penstock.wire.exchange import Request

BY_ID_SINCE = 12


class Wanted(NamedTuple):
    """The topics that a request asks for. `names` is None for all topics; both are without repetition."""

    names: tuple[str, ...] | None
    ids: tuple[bytes, ...]


class Created(NamedTuple):
    """What became of names that did not exist, where they are to be answered with an error."""

    refusals: dict[str, Refusal]
    unauthorized: frozenset[str]


def handle(
    broker: Broker, request: Request, message: MetadataRequest, permit: Permit
) -> MetadataResponse | bytes | Awaitable[MetadataResponse]:
    version = request.api_version
    key = (version, request.session.listener, permit, bytes(request.frame[request.body_at :]))
    known = broker.services.metadata_answers.find(broker.image, key)
    if known is not None:
        return known
    if _malformed(message, version):
        return refused(message, ErrorCode.INVALID_REQUEST)
    wanted = _wanted(message, version)
    missing = [
        name
        for name in wanted.names or ()
        if name not in broker.image.topics and permit.sees(DESCRIBE_TOPIC, name)
    ]
    if missing and permit.leads:
        return _answer_missing(broker, request, message, wanted, missing, permit)
    return _answer_known(broker, request, message, wanted, permit, key)


def named(_broker: Broker, message: MetadataRequest, _version: int) -> Named | None:
    """All topics, or none and only the brokers: what another broker changed a moment ago is in the answer."""
    if not message.topics:
        return None
    topics = message.topics
    return ((topic.topic_id if topic.topic_id != ZERO_UUID else topic.name or "", 0) for topic in topics)


def _answer_known(
    broker: Broker,
    request: Request,
    message: MetadataRequest,
    wanted: Wanted,
    permit: Permit,
    key: Key,
) -> bytes:
    """An answer that follows from the image alone. One that refuses is not kept: the audit is told each
    time."""
    image = broker.image
    response = _answer(broker, image, request, message, wanted, None, permit)
    answer = encode(response, request.api_version)
    if permit.rules is None or all(topic.error_code != DESCRIBE_TOPIC.code for topic in response.topics):
        broker.services.metadata_answers.keep(image, key, answer)
    return answer


def refused(message: MetadataRequest, code: ErrorCode) -> MetadataResponse:
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in message.topics or ()
        ],
        error_code=code,
    )


def _malformed(message: MetadataRequest, version: int) -> bool:
    if version >= BY_ID_SINCE:
        return any(topic.name is None and topic.topic_id == ZERO_UUID for topic in message.topics or ())
    return any(topic.name is None or topic.topic_id != ZERO_UUID for topic in message.topics or ())


def _wanted(message: MetadataRequest, version: int) -> Wanted:
    if message.topics is None or (version == 0 and not message.topics):
        return Wanted(None, ())
    ids = dict.fromkeys(topic.topic_id for topic in message.topics if topic.topic_id != ZERO_UUID)
    names = dict.fromkeys(
        topic.name for topic in message.topics if topic.topic_id == ZERO_UUID and topic.name is not None
    )
    return Wanted(tuple(names), tuple(ids))


async def _answer_missing(
    broker: Broker,
    request: Request,
    message: MetadataRequest,
    wanted: Wanted,
    missing: list[str],
    permit: Permit,
) -> MetadataResponse:
    """Names that the sender may know of are asked for that nobody knows: create them, if that is wanted."""
    image, created = broker.image, None
    if message.allow_auto_topic_creation and broker.settings.auto_create_topics_enable:
        image, created = await _create(broker, permit, missing)
    return _answer(broker, image, request, message, wanted, created, permit)


async def _create(broker: Broker, permit: Permit, missing: list[str]) -> tuple[ClusterImage, Created]:
    """Create what may be created, and say of the rest why not."""
    from penstock.broker.topics.creating import create_automatically

    valid = [name for name in missing if topic_name_problem(name) is None]
    allowed = [name for name in valid if permit.allows(CREATE_TOPIC, name)]
    image = broker.image
    refusals: dict[str, Refusal] = {}
    if allowed:
        image, refusals = await create_automatically(broker, allowed)
    return image, Created(refusals, frozenset(valid).difference(allowed))


def _answer(
    broker: Broker,
    image: ClusterImage,
    request: Request,
    message: MetadataRequest,
    wanted: Wanted,
    created: Created | None,
    permit: Permit,
) -> MetadataResponse:
    version, session = request.api_version, request.session
    # A broker that may not lead any more what it led sends nobody here for it.
    placements = Placements(image, session.listener, NO_LEADER if permit.leads else broker.broker_id)
    topics = []
    described = []
    for topic_id in wanted.ids:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            topics.append(_error(None, ErrorCode.UNKNOWN_TOPIC_ID, topic_id))
        elif permit.allows(DESCRIBE_TOPIC, topic.name):
            described.append(_topic(placements, topic, version))
        else:
            topics.append(_error(None, DESCRIBE_TOPIC.code, topic_id))
    for name in image.topics if wanted.names is None else wanted.names:
        topic = image.topics.get(name)
        asked = permit.sees if wanted.names is None else permit.allows
        if not asked(DESCRIBE_TOPIC, name):
            if wanted.names is not None:
                topics.append(_error(name, DESCRIBE_TOPIC.code, internal=False))
        elif topic is not None:
            described.append(_topic(placements, topic, version))
        elif created is not None and name in created.unauthorized:
            topics.append(_error(name, CREATE_TOPIC.code))
        else:
            described.append(_error(name, _unknown(name, created)))
    if message.include_topic_authorized_operations:
        for entry in described:
            entry.topic_authorized_operations = topic_operations(permit, entry.name or "")
    return MetadataResponse(
        brokers=_brokers(image, session.listener),
        cluster_id=image.cluster_id,
        controller_id=image.controller_id if image.controller_id in placements.reachable else -1,
        topics=[*topics, *described],
        cluster_authorized_operations=cluster_operations(permit)
        if message.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _brokers(image: ClusterImage, listener: str) -> list[MetadataResponseBroker]:
    return [
        MetadataResponseBroker(node_id=info.id, host=address.host, port=address.port, rack=info.rack)
        for info in image.live_brokers
        if (address := info.listener(listener)) is not None
    ]


def _unknown(name: str, created: Created | None) -> ErrorCode:
    if topic_name_problem(name) is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if created is not None and name in created.refusals:
        return created.refusals[name].code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _error(
    name: str | None, code: ErrorCode, topic_id: bytes = ZERO_UUID, *, internal: bool | None = None
) -> MetadataResponseTopic:
    if internal is None:
        internal = name is not None and is_internal(name)
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, is_internal=internal)


def _topic(placements: Placements, topic: TopicInfo, version: int) -> MetadataResponseTopic:
    partitions = []
    for index, partition in enumerate(topic.partitions):
        where = placements.of(partition)
        error, replicas, isr = where.error, where.replicas, where.isr
        if error is ErrorCode.LISTENER_NOT_FOUND and version < 6:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        if version == 0:
            replicas, isr = _alive(placements, replicas), _alive(placements, isr)
            if error is ErrorCode.NONE and len(replicas) < len(where.replicas):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        partitions.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=where.leader,
                leader_epoch=where.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=isr,
                offline_replicas=where.offline,
            )
        )
    return MetadataResponseTopic(
        name=topic.name, topic_id=topic.id, is_internal=is_internal(topic.name), partitions=partitions
    )


def _alive(placements: Placements, replicas: Iterable[int]) -> list[int]:
    return [replica for replica in replicas if replica in placements.reachable]
