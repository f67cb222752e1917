"""JoinGroup 0-9: join a classic group, or stay in it through a rebalance.

- Answered when the generation is complete: as soon as every member has rejoined, or when the rebalance
  timeout is over. `rebalance_timeout_ms` came with version 1; before, the session timeout is used.
- Dynamic members of version 4 and later get MEMBER_ID_REQUIRED first, with the id to come back with
  (KIP-394). Static members (`group_instance_id`, 5 and later, KIP-345) take their old place over.
- Version 9 tells a static leader that came back to skip the assignment (KIP-814). Older ones are made
  followers instead.
- INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID,
  FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
- `reason` (8 and later) is not kept.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.groups.requests import client_of, mapped
from penstock.groups.shard import GroupShard
from penstock.wire.api.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request

REBALANCE_TIMEOUT_SINCE = 1
NULL_PROTOCOL_SINCE = 7


def handle(
    broker: Broker, request: Request, message: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    version = request.api_version
    if version < REBALANCE_TIMEOUT_SINCE:
        message.rebalance_timeout_ms = message.session_timeout_ms
    answer = broker.services.groups.call(
        message.group_id,
        JoinGroupResponse,
        lambda code: refused(message, code),
        GroupShard.join_group,
        message,
        version,
        client_of(request),
    )
    return answer if version >= NULL_PROTOCOL_SINCE else mapped(answer, _without_null)


def _without_null(response: JoinGroupResponse) -> JoinGroupResponse:
    response.protocol_name = response.protocol_name or ""
    return response


def refused(message: JoinGroupRequest, code: ErrorCode) -> JoinGroupResponse:
    # Who may not read the group is told nothing of members, as by Kafka.
    member_id = "" if code is ErrorCode.GROUP_AUTHORIZATION_FAILED else message.member_id
    return JoinGroupResponse(error_code=code, member_id=member_id)
