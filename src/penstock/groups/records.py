"""The records of `__consumer_offsets`, in Kafka's formats, so that Kafka's own tools can read the topic.

A key is two bytes that name its kind, then its fields; a value is two bytes that name its version, then
its fields. A null value is a tombstone. Kinds that this broker does not write (share and streams groups)
are skipped when they are read, as are values of a version from the future.
"""
# ruff: noqa: RUF012 - msgspec gives each struct its own copy of an empty list

from struct import Struct
from typing import Annotated

from penstock.shards.shard import Record
from penstock.wire.buffers import Buffer
from penstock.wire.codec import decode, encode
from penstock.wire.errors import WireError
from penstock.wire.schema import (
    NEVER_FLEXIBLE,
    ZERO_UUID,
    Bytes,
    Int8,
    Int32,
    Int64,
    Message,
    String,
    TopMessage,
    Uuid,
)


class _Key(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = NEVER_FLEXIBLE


class OffsetCommitKey(_Key):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class GroupMetadataKey(_Key):
    group: String = ""


class ConsumerGroupMetadataKey(_Key):
    group_id: String = ""


class ConsumerGroupPartitionMetadataKey(_Key):
    group_id: String = ""


class ConsumerGroupMemberMetadataKey(_Key):
    group_id: String = ""
    member_id: String = ""


class ConsumerGroupTargetAssignmentMetadataKey(_Key):
    group_id: String = ""


class ConsumerGroupTargetAssignmentMemberKey(_Key):
    group_id: String = ""
    member_id: String = ""


class ConsumerGroupCurrentMemberAssignmentKey(_Key):
    group_id: String = ""
    member_id: String = ""


class ConsumerGroupRegularExpressionKey(_Key):
    group_id: String = ""
    regular_expression: String = ""


class OffsetCommitValue(TopMessage):
    min_version = 0
    max_version = 4
    flexible_from = 4

    offset: Int64 = 0
    leader_epoch: Annotated[Int32, "3+", "ignorable"] = -1
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, "1", "ignorable"] = -1
    topic_id: Annotated[Uuid, "4+", "tag 0", "ignorable"] = ZERO_UUID


class MemberMetadata(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, "3+", "ignorable"] = None
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Annotated[Int32, "1+", "ignorable"] = -1
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


class GroupMetadataValue(TopMessage):
    min_version = 0
    max_version = 4
    flexible_from = 4

    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = None
    leader: String | None = None
    current_state_timestamp: Annotated[Int64, "2+", "ignorable"] = -1
    members: list[MemberMetadata] = []


class _ConsumerValue(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = 0


class ConsumerGroupMetadataValue(_ConsumerValue):
    epoch: Int32 = 0
    metadata_hash: Annotated[Int64, "tag 0"] = 0


class ClassicProtocol(Message):
    name: String = ""
    metadata: Bytes = b""


class ClassicMemberMetadata(Message):
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = []


class ConsumerGroupMemberMetadataValue(_ConsumerValue):
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, "tag 0"] = None


class ConsumerGroupTargetAssignmentMetadataValue(_ConsumerValue):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Annotated[Int64, "tag 0", "ignorable"] = 0


class TargetTopicPartitions(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupTargetAssignmentMemberValue(_ConsumerValue):
    topic_partitions: list[TargetTopicPartitions] = []


class CurrentTopicPartitions(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []
    assignment_epochs: Annotated[list[Int32] | None, "tag 0"] = None


class ConsumerGroupCurrentMemberAssignmentValue(_ConsumerValue):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[CurrentTopicPartitions] = []
    partitions_pending_revocation: list[CurrentTopicPartitions] = []


class ConsumerGroupRegularExpressionValue(_ConsumerValue):
    topics: list[String] = []
    version: Int64 = 0
    timestamp: Int64 = 0


Key = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

OLD_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1

# Kind, key class, value class. The value class of partition metadata is not needed: Kafka stopped to use
# it, and only its tombstone could matter.
_KINDS: tuple[tuple[int, type[Key], type[Value] | None], ...] = (
    (OFFSET_COMMIT, OffsetCommitKey, OffsetCommitValue),
    (2, GroupMetadataKey, GroupMetadataValue),
    (3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    (4, ConsumerGroupPartitionMetadataKey, None),
    (5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    (6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    (7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    (8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    (16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
)
_KIND_OF = {key_class: kind for kind, key_class, _ in _KINDS}
_BY_KIND = {kind: (key_class, value_class) for kind, key_class, value_class in _KINDS}
_BY_KIND[OLD_OFFSET_COMMIT] = (OffsetCommitKey, OffsetCommitValue)

_INT16 = Struct(">h")


def encode_key(key: Key) -> bytes:
    return _INT16.pack(_KIND_OF[type(key)]) + encode(key, 0)


def value_version(value: Value) -> int:
    """The version that Kafka writes: the oldest that can say all of it, so that older tools can read it."""
    if isinstance(value, OffsetCommitValue):
        if value.expire_timestamp != -1:
            return 1
        return 3 if value.topic_id == ZERO_UUID else 4
    return 3 if isinstance(value, GroupMetadataValue) else 0


def encode_value(value: Value) -> bytes:
    version = value_version(value)
    return _INT16.pack(version) + encode(value, version)


def to_record(key: Key, value: Value | None) -> Record:
    return Record(encode_key(key), None if value is None else encode_value(value))


def read_record(key: Buffer, value: Buffer | None) -> tuple[Key, Value | None] | None:
    """A record of the topic, or None if it is of a kind or version that this broker does not know.

    WireError if it is not a record of the topic at all.
    """
    key_view = memoryview(key)
    kind = _leading_number(key_view)
    classes = _BY_KIND.get(kind)
    if classes is None:
        return None
    key_class, value_class = classes
    key_message, _ = decode(key_class, 0, key_view, 2)
    if value is None or value_class is None:
        return key_message, None
    value_view = memoryview(value)
    version = _leading_number(value_view)
    if not value_class.min_version <= version <= value_class.max_version:
        return None
    value_message, _ = decode(value_class, version, value_view, 2)
    return key_message, value_message


def _leading_number(view: memoryview) -> int:
    if len(view) < _INT16.size:
        raise WireError("a record of the offsets topic is shorter than two bytes")
    (number,) = _INT16.unpack_from(view)
    return int(number)
