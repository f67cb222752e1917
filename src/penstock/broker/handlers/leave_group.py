"""LeaveGroup 0-5: members leave a classic group; many at once from version 3 on (KIP-345).

- Each member has its own code: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. An administrator removes a static
  member by its instance alone. Below version 3, the one member's code is that of the answer.
- When the last member leaves, the answer waits until that is durable.
- `reason` (5 and later) is not kept.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.groups.requests import mapped
from penstock.groups.shard import GroupShard
from penstock.wire.api.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request

MANY_SINCE = 3


def handle(
    broker: Broker, request: Request, message: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    one = request.api_version < MANY_SINCE
    if one:
        message.members = [MemberIdentity(member_id=message.member_id)]
    answer = broker.services.groups.call(
        message.group_id,
        LeaveGroupResponse,
        lambda code: LeaveGroupResponse(error_code=code),
        GroupShard.leave_group,
        message,
    )
    return mapped(answer, _of_one) if one else answer


def _of_one(response: LeaveGroupResponse) -> LeaveGroupResponse:
    if response.error_code == ErrorCode.NONE and response.members:
        return LeaveGroupResponse(error_code=response.members[0].error_code)
    return LeaveGroupResponse(error_code=response.error_code)
