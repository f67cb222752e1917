"""ListGroups 0-5: the groups that this broker coordinates; a client asks every broker.

- Filters by state (4 and later, KIP-518) and by type (5 and later, KIP-848), without regard to case. A
  filter that names nothing that exists finds nothing.
- COORDINATOR_LOAD_IN_PROGRESS while a partition is being loaded: part of the list would look like all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.acl import CLUSTER_NAME, Operation, Resource
from penstock.wire.api.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request


async def handle(broker: Broker, request: Request, message: ListGroupsRequest) -> ListGroupsResponse:
    shards = await broker.services.groups.all_shards()
    if isinstance(shards, ErrorCode):
        return ListGroupsResponse(error_code=shards)
    groups = [
        group
        for live in shards
        for group in live.shard.list_groups(message.states_filter, message.types_filter)
    ]
    session = request.session
    if not broker.authorized(session, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        groups = [
            group
            for group in groups
            if broker.authorized(session, Operation.DESCRIBE, Resource.GROUP, group.group_id)
        ]
    return ListGroupsResponse(groups=groups)
