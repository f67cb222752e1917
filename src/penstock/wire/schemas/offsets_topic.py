"""Records of `__consumer_offsets`: what group coordinators remember.

The two bytes before a key say which kind of record it is, so each key class has a version of its own; the two
bytes before a value are the version of its layout. A key without a value is a tombstone. `read_key` and
`VALUE_OF` take a record apart:

    key = read_key(record.key)
    value = None if record.value is None else decode_versioned(VALUE_OF[type(key)], record.value)
"""

from typing import Annotated

from penstock.wire import codec
from penstock.wire.buffers import Buffer
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


class OffsetCommitKey(TopMessage):
    """Versions 0 and 1 are the same kind of record; 1 is written."""

    min_version = 0
    max_version = 1
    flexible_from = NEVER_FLEXIBLE

    group: String = ""
    topic: String = ""
    partition: Int32 = 0


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


class GroupMetadataKey(TopMessage):
    min_version = 2
    max_version = 2
    flexible_from = NEVER_FLEXIBLE

    group: String = ""


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
    protocol: String | None = ""
    leader: String | None = ""
    current_state_timestamp: Annotated[Int64, "2+", "ignorable"] = -1
    members: list[MemberMetadata] = []


class ConsumerGroupMetadataKey(TopMessage):
    min_version = 3
    max_version = 3
    flexible_from = NEVER_FLEXIBLE

    group_id: String = ""


class ConsumerGroupMetadataValue(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = 0

    epoch: Int32 = 0
    metadata_hash: Annotated[Int64, "tag 0"] = 0


class ConsumerGroupPartitionMetadataKey(TopMessage):
    """Replaced by the metadata hash in newer coordinators, which write only tombstones of it."""

    min_version = 4
    max_version = 4
    flexible_from = NEVER_FLEXIBLE

    group_id: String = ""


class PartitionMetadata(Message):
    partition: Int32 = 0
    racks: list[String] = []


class TopicMetadata(Message):
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionMetadata] = []


class ConsumerGroupPartitionMetadataValue(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = 0

    topics: list[TopicMetadata] = []


class ConsumerGroupMemberMetadataKey(TopMessage):
    min_version = 5
    max_version = 5
    flexible_from = NEVER_FLEXIBLE

    group_id: String = ""
    member_id: String = ""


class ClassicProtocol(Message):
    name: String = ""
    metadata: Bytes = b""


class ClassicMemberMetadata(Message):
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = []


class ConsumerGroupMemberMetadataValue(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = 0

    instance_id: String | None = ""
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = ""
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = ""
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, "tag 0"] = None


class ConsumerGroupTargetAssignmentMetadataKey(TopMessage):
    min_version = 6
    max_version = 6
    flexible_from = NEVER_FLEXIBLE

    group_id: String = ""


class ConsumerGroupTargetAssignmentMetadataValue(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = 0

    assignment_epoch: Int32 = 0


class ConsumerGroupTargetAssignmentMemberKey(TopMessage):
    min_version = 7
    max_version = 7
    flexible_from = NEVER_FLEXIBLE

    group_id: String = ""
    member_id: String = ""


class TopicPartitions(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


class ConsumerGroupTargetAssignmentMemberValue(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = 0

    topic_partitions: list[TopicPartitions] = []


class ConsumerGroupCurrentMemberAssignmentKey(TopMessage):
    min_version = 8
    max_version = 8
    flexible_from = NEVER_FLEXIBLE

    group_id: String = ""
    member_id: String = ""


class ConsumerGroupCurrentMemberAssignmentValue(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = 0

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = []
    partitions_pending_revocation: list[TopicPartitions] = []


class ConsumerGroupRegularExpressionKey(TopMessage):
    min_version = 16
    max_version = 16
    flexible_from = NEVER_FLEXIBLE

    group_id: String = ""
    regular_expression: String = ""


class ConsumerGroupRegularExpressionValue(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = 0

    topics: list[String] = []
    version: Int64 = 0
    timestamp: Int64 = 0


VALUE_OF: dict[type[TopMessage], type[TopMessage]] = {
    OffsetCommitKey: OffsetCommitValue,
    GroupMetadataKey: GroupMetadataValue,
    ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey: ConsumerGroupPartitionMetadataValue,
    ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
}

KEY_OF: dict[int, type[TopMessage]] = {
    kind: key for key in VALUE_OF for kind in range(key.min_version, key.max_version + 1)
}


def read_key(buf: Buffer) -> TopMessage:
    """The key of a record, as the class that its first two bytes name. WireError for a kind unknown here."""
    kind = int.from_bytes(buf[:2], "big")
    if kind not in KEY_OF:
        raise WireError(f"no group record has the key type {kind}")
    return codec.decode_versioned(KEY_OF[kind], buf)
