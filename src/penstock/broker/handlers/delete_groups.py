"""DeleteGroups 0-2: remove groups that nobody is in, with their offsets.

- Each group has its own code: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, NOT_COORDINATOR.
- Answered when the tombstones are durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import DELETE_GROUP
from penstock.broker.shards.live import answered
from penstock.groups.shard import GroupShard
from penstock.wire.api.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.broker.shards.live import LiveShard
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: DeleteGroupsRequest, permit: Permit
) -> DeleteGroupsResponse:
    coordinator = broker.services.groups
    codes: dict[str, int] = {}
    wanted: dict[LiveShard[GroupShard], list[str]] = {}
    names = list(dict.fromkeys(message.groups_names))
    for group_id in names:
        found = permit.refusal(DELETE_GROUP, group_id) or await coordinator.found(group_id)
        if isinstance(found, ErrorCode):
            codes[group_id] = found
        else:
            wanted.setdefault(found, []).append(group_id)
    for live, group_ids in wanted.items():
        if not live.serves:
            # It went to another broker while others were looked for, or deleted.
            codes.update(dict.fromkeys(group_ids, ErrorCode.NOT_COORDINATOR))
            continue
        waiting = live.ask(GroupShard.delete_groups, group_ids)
        response = answered(await waiting if hasattr(waiting, "__await__") else waiting, DeleteGroupsResponse)
        codes.update({result.group_id: result.error_code for result in response.results})
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=codes[name]) for name in names]
    )


def refused(message: DeleteGroupsRequest, code: ErrorCode) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=code) for name in message.groups_names]
    )
