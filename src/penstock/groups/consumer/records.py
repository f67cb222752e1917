"""Consumer groups to records and back.

`replay` applies a record to its group. It runs for records that were just decided and for records that are
loaded, so the two cannot drift apart.
"""

from collections.abc import Iterable

import msgspec

from penstock.groups.consumer.group import (
    LEAVE_EPOCH,
    NO_PARTITIONS,
    ClassicSide,
    ConsumerGroup,
    Member,
    MemberState,
    Partitions,
    ResolvedRegex,
    Target,
)
from penstock.groups.core import Client, TypedRecord
from penstock.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    Key,
    TargetTopicPartitions,
    Value,
)
from penstock.groups.table import Group

NO_ASSIGNMENT_EPOCH = -1


# Records


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> TypedRecord:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return ConsumerGroupMetadataKey(group_id=group_id), value


def member_record(group_id: str, member: Member) -> TypedRecord:
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client.id,
        client_host=member.client.host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=n, metadata=m) for n, m in classic.protocols],
        ),
    )
    return ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.id), value


def target_record(group_id: str, member_id: str, target: Target) -> TypedRecord:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TargetTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in sorted(target.items())
        ]
    )
    return ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value


def target_epoch_record(group_id: str, epoch: int, timestamp: int) -> TypedRecord:
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp)
    return ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value


def current_record(group_id: str, member: Member) -> TypedRecord:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=int(member.state),
        assigned_partitions=_held(member.assigned),
        partitions_pending_revocation=_held(member.revoking),
    )
    return ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.id), value


def _held(partitions: Partitions) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=sorted(epochs),
            assignment_epochs=[epochs[partition] for partition in sorted(epochs)],
        )
        for topic_id, epochs in sorted(partitions.items())
    ]


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> TypedRecord:
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp
    )
    return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value


def regex_tombstone(group_id: str, regex: str) -> TypedRecord:
    return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None


def member_tombstones(group_id: str, member_ids: Iterable[str]) -> list[TypedRecord]:
    """In this order, so that a member is never left with an assignment and no subscription."""
    ids = list(member_ids)
    key_classes: tuple[
        type[ConsumerGroupCurrentMemberAssignmentKey]
        | type[ConsumerGroupTargetAssignmentMemberKey]
        | type[ConsumerGroupMemberMetadataKey],
        ...,
    ] = (
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupMemberMetadataKey,
    )
    return [
        (key_class(group_id=group_id, member_id=member_id), None)
        for member_id in ids
        for key_class in key_classes
    ]


def group_tombstones(group: ConsumerGroup) -> list[TypedRecord]:
    group_id = group.group_id
    return [
        *member_tombstones(group_id, group.members),
        (ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        *(regex_tombstone(group_id, regex) for regex in group.resolved),
        (ConsumerGroupMetadataKey(group_id=group_id), None),
    ]


def group_records(group: ConsumerGroup, timestamp: int) -> list[TypedRecord]:
    """The whole group from nothing: for one that was converted from the classic protocol."""
    group_id = group.group_id
    members = group.members.values()
    return [
        *(member_record(group_id, member) for member in members),
        epoch_record(group_id, group.epoch, group.metadata_hash),
        *(target_record(group_id, member.id, group.targets[member.id]) for member in members),
        target_epoch_record(group_id, group.assignment_epoch, timestamp),
        *(current_record(group_id, member) for member in members),
    ]


# And back


def replay(groups: dict[str, Group], key: Key, value: Value | None) -> None:
    """Change the group as the record says. A tombstone for what is not there changes nothing."""
    group_id = getattr(key, "group_id", "")
    group = groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        if value is None:
            return
        # A classic group that only holds offsets has no record of its own, and one that was converted left
        # a tombstone before this record: either way the consumer group takes its place.
        group = groups[group_id] = ConsumerGroup(group_id)
    match key:
        case ConsumerGroupMetadataKey():
            _replay_epoch(groups, group, value)
        case ConsumerGroupMemberMetadataKey(member_id=member_id):
            _replay_member(group, member_id, value)
        case ConsumerGroupTargetAssignmentMetadataKey():
            assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
            group.assignment_epoch = NO_ASSIGNMENT_EPOCH if value is None else value.assignment_epoch
            group.assignment_timestamp = 0 if value is None else value.assignment_timestamp
        case ConsumerGroupTargetAssignmentMemberKey(member_id=member_id):
            _replay_target(group, member_id, value)
        case ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id):
            _replay_current(group, member_id, value)
        case ConsumerGroupRegularExpressionKey(regular_expression=regex):
            _replay_regex(group, regex, value)
        case ConsumerGroupPartitionMetadataKey():
            pass


def _replay_epoch(groups: dict[str, Group], group: ConsumerGroup, value: Value | None) -> None:
    if value is None:
        del groups[group.group_id]
        return
    assert isinstance(value, ConsumerGroupMetadataValue)
    group.epoch = value.epoch
    group.metadata_hash = value.metadata_hash


def _replay_member(group: ConsumerGroup, member_id: str, value: Value | None) -> None:
    if value is None:
        group.remove_member(member_id)
        return
    assert isinstance(value, ConsumerGroupMemberMetadataValue)
    classic = value.classic_member_metadata
    group.put_member(
        msgspec.structs.replace(
            group.members.get(member_id) or Member(id=member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client=Client(value.client_id, value.client_host),
            topics=tuple(sorted(value.subscribed_topic_names)),
            regex=value.subscribed_topic_regex or "",
            assignor=value.server_assignor,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            classic=None
            if classic is None
            else ClassicSide(
                classic.session_timeout_ms,
                tuple((p.name, bytes(p.metadata)) for p in classic.supported_protocols),
            ),
        )
    )


def _replay_target(group: ConsumerGroup, member_id: str, value: Value | None) -> None:
    if value is None:
        group.targets.pop(member_id, None)
        return
    assert isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
    group.targets[member_id] = {tp.topic_id: frozenset(tp.partitions) for tp in value.topic_partitions}


def _replay_current(group: ConsumerGroup, member_id: str, value: Value | None) -> None:
    member = group.members.get(member_id)
    if value is None:
        if member is not None:
            group.put_member(
                msgspec.structs.replace(
                    member,
                    epoch=LEAVE_EPOCH,
                    previous_epoch=LEAVE_EPOCH,
                    assigned=NO_PARTITIONS,
                    revoking=NO_PARTITIONS,
                )
            )
        return
    assert isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
    known = value.state in (0, 1, 2)
    group.put_member(
        msgspec.structs.replace(
            member or Member(id=member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_partitions(value.assigned_partitions, value.member_epoch),
            revoking=_partitions(value.partitions_pending_revocation, value.member_epoch),
        )
    )


def _partitions(stored: list[CurrentTopicPartitions], member_epoch: int) -> Partitions:
    return {
        tp.topic_id: dict(
            zip(tp.partitions, tp.assignment_epochs or [member_epoch] * len(tp.partitions), strict=False)
        )
        for tp in stored
    }


def _replay_regex(group: ConsumerGroup, regex: str, value: Value | None) -> None:
    if value is None:
        group.resolved.pop(regex, None)
        return
    assert isinstance(value, ConsumerGroupRegularExpressionValue)
    group.resolved[regex] = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
