"""FindCoordinator 0-6: which broker coordinates a group or a transactional id.

- The coordinator is the leader of the partition of `__consumer_offsets` (or `__transaction_state`) that the
  key hashes to. It is named only if it is alive in the same image, with its address for the listener that
  the client came in by; otherwise COORDINATOR_NOT_AVAILABLE, which clients try again.
- A broker that could neither renew its lease nor look at the log for a session time-out does not name itself.
- The internal topic is created here if it does not exist, and the answer waits for it: the named broker
  serves already, or will as soon as it is asked.
- From version 4 (KIP-699) many keys are asked for at once, each with its own code.
- Transactional ids are TRANSACTIONAL_ID_AUTHORIZATION_FAILED while the feature level of the cluster is below
  that of transactions, with a message that says so. It is the one code that every client gives up on at once:
  librdkafka tries again after any other, until its time is over. Share groups (KIP-932) and key types that
  nobody knows are INVALID_REQUEST. From version 6 on only brokers may ask for share groups, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import BE_A_BROKER, DESCRIBE_GROUP, DESCRIBE_TRANSACTION
from penstock.metadata.image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.metadata.levels import TRANSACTIONS_FROM
from penstock.shards.partitioner import partition_of
from penstock.wire.api.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

GROUP = 0
TRANSACTION = 1
SHARE = 2
SHARE_SINCE = 6
MANY_SINCE = 4
NO_NODE = -1
_RIGHTS = {GROUP: DESCRIBE_GROUP, TRANSACTION: DESCRIBE_TRANSACTION}


async def handle(
    broker: Broker, request: Request, message: FindCoordinatorRequest, permit: Permit
) -> FindCoordinatorResponse:
    """From one image."""
    topic = _topic(broker.image, message.key_type)
    many = request.api_version >= MANY_SINCE
    keys = message.coordinator_keys if many else [message.key]
    if message.key_type == SHARE and request.api_version >= SHARE_SINCE and not permit.allows(BE_A_BROKER):
        why = "Only a broker may ask for the coordinator of a share group."
        return FindCoordinatorResponse(coordinators=[_refused(key, BE_A_BROKER.code, why) for key in keys])
    refusals = {key: _refusal(broker.image, message.key_type, key, permit) for key in keys}
    if topic is not None and topic not in broker.image.topics and None in refusals.values():
        await _create(broker, topic)
    image = broker.image
    found = [refusals[key] or _find(broker, image, request, topic, key, permit.leads) for key in keys]
    if many:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        # Kafka's own answers of these versions say NONE in so many letters.
        error_message=one.error_message or ErrorCode(one.error_code).name,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _topic(image: ClusterImage, key_type: int) -> str | None:
    """Where keys of this type live; None if this cluster coordinates nothing of the kind."""
    if key_type == GROUP:
        return OFFSETS_TOPIC
    if key_type == TRANSACTION and image.level >= TRANSACTIONS_FROM:
        return TRANSACTIONS_TOPIC
    return None


async def _create(broker: Broker, topic: str) -> None:
    from penstock.broker.topics.creating import create_automatically

    await create_automatically(broker, [topic])
    await broker.opened()


def _refusal(image: ClusterImage, key_type: int, key: str, permit: Permit) -> Coordinator | None:
    """Why not even to look."""
    right = _RIGHTS.get(key_type)
    if right is not None and not permit.allows(right, key):
        return _refused(key, right.code)
    if _topic(image, key_type) is not None:
        return None
    if key_type == TRANSACTION:
        why = (
            f"Transactions need feature level {TRANSACTIONS_FROM}, and this cluster is at {image.level}: "
            "run `penstock cluster upgrade`."
        )
        return _refused(key, DESCRIBE_TRANSACTION.code, why)
    why = f"This broker coordinates no keys of type {key_type}."
    return _refused(key, ErrorCode.INVALID_REQUEST, why)


def _find(
    broker: Broker, image: ClusterImage, request: Request, topic: str | None, key: str, sure: bool
) -> Coordinator:
    """`sure`: this broker coordinates what the image gives to it."""
    info = None if topic is None else image.topics.get(topic)
    if info is not None:
        leader = image.brokers.get(info.partitions[partition_of(key, len(info.partitions))].leader)
        address = None if leader is None or leader.fenced else leader.listener(request.session.listener)
        if leader is not None and address is not None and (sure or leader.id != broker.broker_id):
            return Coordinator(key=key, node_id=leader.id, host=address.host, port=address.port)
    return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")


def _refused(key: str, code: ErrorCode, why: str = "") -> Coordinator:
    return Coordinator(key=key, node_id=NO_NODE, port=NO_NODE, error_code=code, error_message=why)


def refused(message: FindCoordinatorRequest, code: ErrorCode) -> FindCoordinatorResponse:
    """Either form: what the version does not have is left at its default and not written."""
    if message.coordinator_keys:
        return FindCoordinatorResponse(coordinators=[_refused(key, code) for key in message.coordinator_keys])
    return FindCoordinatorResponse(error_code=code, node_id=NO_NODE, port=NO_NODE)
