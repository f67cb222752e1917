"""ConsumerGroupDescribe 0-1: groups of the consumer protocol with their members (KIP-848).

- Shows the durable state: epochs, the partitions of each member and those that it is to get. Version 1 says
  which protocol a member speaks.
- GROUP_ID_NOT_FOUND, with a sentence, for a group that is unknown or classic: clients then try
  DescribeGroups. NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS and INVALID_GROUP_ID per group.
- A member that has a topic which the caller may not describe is TOPIC_AUTHORIZATION_FAILED for its group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.operations import group_operations
from penstock.broker.rights import DESCRIBE_GROUP, DESCRIBE_TOPIC
from penstock.wire.api.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: ConsumerGroupDescribeRequest, permit: Permit
) -> ConsumerGroupDescribeResponse:
    described = {
        group_id: await _describe(broker, message, permit, group_id)
        for group_id in dict.fromkeys(message.group_ids)
    }
    return ConsumerGroupDescribeResponse(groups=[described[group_id] for group_id in message.group_ids])


async def _describe(
    broker: Broker, message: ConsumerGroupDescribeRequest, permit: Permit, group_id: str
) -> DescribedGroup:
    if not permit.allows(DESCRIBE_GROUP, group_id):
        return DescribedGroup(group_id=group_id, error_code=DESCRIBE_GROUP.code)
    if not group_id:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    found = await broker.services.groups.found(group_id)
    if isinstance(found, ErrorCode):
        return DescribedGroup(group_id=group_id, error_code=found)
    group = found.shard.describe_consumer_group(group_id)
    if group.error_code != ErrorCode.NONE:
        return group
    topics = {
        entry.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for entry in assignment.topic_partitions
    }
    if not all(permit.allows(DESCRIBE_TOPIC, topic) for topic in topics):
        return DescribedGroup(
            group_id=group_id,
            error_code=DESCRIBE_TOPIC.code,
            error_message="The group has described topic(s) that the client is not authorized to describe.",
        )
    if message.include_authorized_operations:
        group.authorized_operations = group_operations(permit, group_id)
    return group


def refused(message: ConsumerGroupDescribeRequest, code: ErrorCode) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in message.group_ids]
    )
