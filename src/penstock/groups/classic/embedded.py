"""Subscriptions and assignments that classic consumers put inside JoinGroup and SyncGroup: read and written.

Groups of other types (connect, schema registry) keep their bytes to themselves, and these functions are never
asked about them. Bytes from a client are not trusted: `WireError` is raised for bytes that do not parse.
"""

from collections.abc import Iterable, Mapping
from struct import Struct, error

from penstock.wire.codec import decode, encode
from penstock.wire.errors import WireError
from penstock.wire.schemas.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

CONSUMER_PROTOCOL_TYPE = "consumer"

_INT16 = Struct(">h")
_NEWEST = ConsumerProtocolSubscription.max_version


def embedded_version(data: bytes) -> int:
    """The version in front, brought into the range that is known: newer ones only append fields."""
    try:
        (version,) = _INT16.unpack_from(data)
    except error:
        raise WireError("embedded consumer protocol is shorter than its version") from None
    if version < 0:
        raise WireError("embedded consumer protocol has a negative version")
    return min(int(version), _NEWEST)


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    message, _ = decode(ConsumerProtocolSubscription, embedded_version(data), memoryview(data), 2)
    return message


def read_assignment(data: bytes) -> dict[str, list[int]]:
    """Partitions by topic; a member that got nothing may have no bytes at all."""
    if not data:
        return {}
    message, _ = decode(ConsumerProtocolAssignment, embedded_version(data), memoryview(data), 2)
    return {entry.topic: list(entry.partitions) for entry in message.assigned_partitions}


def write_assignment(partitions: Mapping[str, Iterable[int]], version: int) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=topic, partitions=sorted(indexes))
            for topic, indexes in sorted(partitions.items())
        ]
    )
    return _INT16.pack(version) + encode(message, version)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics in these subscriptions, or None if one of them is not what consumers send."""
    topics: set[str] = set()
    try:
        for data in subscriptions:
            embedded_version(data)
            # Topics lead in every version, and a client may claim a version whose tail it does not send.
            message, _ = decode(ConsumerProtocolSubscription, 0, memoryview(data), 2)
            topics.update(message.topics)
    except WireError:
        return None
    return frozenset(topics)
