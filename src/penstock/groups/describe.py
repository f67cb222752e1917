"""Groups as ListGroups, DescribeGroups and ConsumerGroupDescribe show them."""

from collections.abc import Iterable

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.consumer.group import NO_TARGET, ConsumerGroup, Partitions, Target
from penstock.groups.consumer.target import assignor_of
from penstock.groups.core import Context
from penstock.groups.migration import named
from penstock.groups.table import Group
from penstock.metadata.image import ClusterImage
from penstock.wire.api.consumer_group_describe import Assignment, Member, TopicPartitions
from penstock.wire.api.consumer_group_describe import DescribedGroup as DescribedConsumer
from penstock.wire.api.describe_groups import DescribedGroup as Described
from penstock.wire.api.list_groups import ListedGroup
from penstock.wire.errors import ErrorCode

NOT_FOUND_SINCE = 6
"""Older clients are told that an unknown group is dead, which they take for an empty one."""

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1

__all__ = ["Described", "DescribedConsumer", "described_classic", "described_consumer", "listed", "words"]


def words(filters: Iterable[str]) -> frozenset[str]:
    """What the filters of a list name, without regard to case. There may be very many, and all shards of a
    broker are asked, so this is done once."""
    return frozenset(one.strip().lower() for one in filters)


def listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.listed_protocol_type,
        group_state=group.state_name,
        group_type=group.type,
    )


def described_classic(group_id: str, group: Group | None, version: int) -> Described:
    if not isinstance(group, ClassicGroup):
        answer = Described(group_id=group_id, group_state=State.DEAD.value)
        if version >= NOT_FOUND_SINCE:
            answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            answer.error_message = (
                f"Group {group_id} not found."
                if group is None
                else f"Group {group_id} is not a classic group."
            )
        return answer
    protocol = group.protocol if group.state is State.STABLE else None
    return Described(
        group_id=group_id,
        group_state=group.state_name,
        protocol_type=group.listed_protocol_type,
        protocol_data=protocol or "",
        members=[member.describe(protocol) for member in group.members.values()],
    )


def described_consumer(context: Context, group_id: str, group: Group | None) -> DescribedConsumer:
    if not isinstance(group, ConsumerGroup):
        return DescribedConsumer(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} not found."
            if group is None
            else f"Group {group_id} is not a consumer group.",
        )
    image = context.image
    return DescribedConsumer(
        group_id=group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor_of(context, group),
        members=[
            Member(
                member_id=m.id,
                instance_id=m.instance_id,
                rack_id=m.rack_id,
                member_epoch=m.epoch,
                client_id=m.client.id,
                client_host=m.client.host,
                subscribed_topic_names=list(m.topics),
                subscribed_topic_regex=m.regex,
                assignment=_assignment(image, m.held()),
                target_assignment=_assignment(image, group.targets.get(m.id, NO_TARGET)),
                member_type=_CONSUMER_MEMBER if m.classic is None else _CLASSIC_MEMBER,
            )
            for m in group.members.values()
        ],
    )


def _assignment(image: ClusterImage, partitions: Partitions | Target) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=image.topics[name].id, topic_name=name, partitions=indexes)
            for name, indexes in sorted(named(image, partitions).items())
        ]
    )
