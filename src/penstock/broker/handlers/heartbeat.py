"""Heartbeat 0-4: a member of a classic group says that it is alive, and learns whether to rejoin.

- Touches no storage. REBALANCE_IN_PROGRESS means rejoin; ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID and
  FENCED_INSTANCE_ID mean that the member is out.
- While the coordinator loads, the answer is NONE: nobody's session runs then, so there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.groups.shard import GroupShard
from penstock.wire.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request


def handle(
    broker: Broker, request: Request, message: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    return broker.services.groups.call(
        message.group_id, HeartbeatResponse, _refused, GroupShard.heartbeat, message
    )


def _refused(code: ErrorCode) -> HeartbeatResponse:
    loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)
