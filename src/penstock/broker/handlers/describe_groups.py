"""DescribeGroups 0-6: classic groups with their members.

- Metadata of members is shown while the group is stable. A group that is unknown, or of the consumer
  protocol, is Dead with no error; GROUP_ID_NOT_FOUND from version 6 on (KIP-1043).
- NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS per group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.operations import NOT_ASKED, group_operations
from penstock.broker.rights import DESCRIBE_GROUP
from penstock.wire.api.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: DescribeGroupsRequest, permit: Permit
) -> DescribeGroupsResponse:
    coordinator = broker.services.groups
    described: dict[str, DescribedGroup] = {}
    for group_id in message.groups:
        if group_id in described:
            continue
        found = permit.refusal(DESCRIBE_GROUP, group_id) or await coordinator.found(group_id)
        if isinstance(found, ErrorCode):
            described[group_id] = _refused(group_id, found)
            continue
        group = found.shard.describe_group(group_id, request.api_version)
        if message.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = group_operations(permit, group_id)
        described[group_id] = group
    return DescribeGroupsResponse(groups=[described[group_id] for group_id in message.groups])


def _refused(group_id: str, code: ErrorCode) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=code, authorized_operations=NOT_ASKED)


def refused(message: DescribeGroupsRequest, code: ErrorCode) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[_refused(group_id, code) for group_id in message.groups])
