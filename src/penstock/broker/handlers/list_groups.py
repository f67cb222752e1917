"""ListGroups 0-5: the groups that this broker coordinates; a client asks every broker.

- Filters by state (4 and later, KIP-518) and by type (5 and later, KIP-848), without regard to case. A
  filter that names nothing that exists finds nothing.
- COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded: part of the list would look like all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import LIST_GROUP
from penstock.groups.describe import words
from penstock.wire.api.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: ListGroupsRequest, permit: Permit
) -> ListGroupsResponse:
    shards = await broker.services.groups.all_shards()
    if isinstance(shards, ErrorCode):
        return ListGroupsResponse(error_code=shards)
    states, types = words(message.states_filter), words(message.types_filter)
    groups = [
        group
        for live in shards
        for group in live.shard.list_groups(states, types)
        if permit.sees(LIST_GROUP, group.group_id)
    ]
    return ListGroupsResponse(groups=groups)
