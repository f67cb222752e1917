"""SyncGroup 0-5: the leader of a classic generation hands assignments in, everybody gets theirs.

- Once the leader's assignments are durable, it and the members that wait get theirs.
- ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS (rejoin),
  INCONSISTENT_GROUP_PROTOCOL (protocol type and name are checked from version 5 on, KIP-559).
- Assignments are opaque. A member that the leader left out gets none.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.groups.shard import GroupShard
from penstock.wire.api.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request

PROTOCOL_SINCE = 5


def handle(
    broker: Broker, request: Request, message: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    if request.api_version >= PROTOCOL_SINCE and (
        message.protocol_type is None or message.protocol_name is None
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return broker.services.groups.call(
        message.group_id,
        SyncGroupResponse,
        lambda code: SyncGroupResponse(error_code=code),
        GroupShard.sync_group,
        message,
    )
