"""All groups at one moment: their states, members, committed offsets and lag, in few requests.

A look costs each broker one request for its groups, one or two for their members and one for their committed
offsets, and each leader one for the ends of its partitions. Brokers that know no question for many groups at
once are asked for each group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.admin.offsets import LATEST, Offsets, Place, committed_at, list_offsets
from penstock.client import AnswerError, Client, ClientError, Connection
from penstock.wire.api.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.api.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.wire.api.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.wire.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse

GROUPS_MAX = 500
"""Groups that are asked about in one look. Further ones are listed only."""
MANY_GROUPS, TOPIC_NAMES = 8, 9
"""The versions of OffsetFetch that take many groups, and the last that names topics."""


class Standing(NamedTuple):
    name: str
    state: str
    type: str
    members: int | None
    """None: not asked."""
    committed: Mapping[Place, int]
    lag: int | None
    """None: the group committed nothing, or nothing that can be compared."""


def standings(client: Client, most: int = GROUPS_MAX) -> list[Standing]:
    """The groups that brokers list now, in order. A broker that does not answer is left out."""
    listed: dict[str, ListedGroup] = {}
    members: dict[str, int] = {}
    committed: dict[str, Offsets] = {}
    for broker in client.metadata([]).brokers:
        try:
            connection = client.broker(broker.node_id)
            answer = connection.ask(ListGroupsRequest(), ListGroupsResponse)
            if answer.error_code:
                raise AnswerError(answer.error_code, f"The question for groups to broker {broker.node_id}")
            some = answer.groups[: max(0, most - len(committed))]
            listed.update((one.group_id, one) for one in answer.groups)
            members |= _members(connection, some)
            committed |= _committed(connection, [one.group_id for one in some])
        except AnswerError:
            raise
        except ClientError:
            client.refresh()
    ends = _ends(client, committed.values())
    return [
        Standing(
            name,
            one.group_state,
            one.group_type,
            members.get(name),
            committed.get(name, {}),
            lag_of(committed.get(name, {}), ends),
        )
        for name, one in sorted(listed.items())
    ]


def lag_of(committed: Mapping[Place, int], ends: Mapping[Place, int]) -> int | None:
    known = [max(0, ends[place] - at) for place, at in committed.items() if place in ends]
    return sum(known) if known else None


def _ends(client: Client, committed: Iterable[Offsets]) -> Offsets:
    places = {place for offsets in committed for place in offsets}
    if not places:
        return {}
    client.metadata(sorted({topic for topic, _ in places}))
    return list_offsets(client, sorted(places), LATEST)


def _members(connection: Connection, groups: Sequence[ListedGroup]) -> dict[str, int]:
    newer = [one.group_id for one in groups if one.group_type.lower() == "consumer"]
    older = [one.group_id for one in groups if one.group_type.lower() in ("classic", "")]
    found: dict[str, int] = {}
    if newer and connection.knows(ConsumerGroupDescribeRequest.api_key):
        request = ConsumerGroupDescribeRequest(group_ids=newer)
        described = connection.ask(request, ConsumerGroupDescribeResponse).groups
        found |= {one.group_id: len(one.members) for one in described if not one.error_code}
    if older:
        answer = connection.ask(DescribeGroupsRequest(groups=older), DescribeGroupsResponse, newest=5)
        found |= {one.group_id: len(one.members) for one in answer.groups if not one.error_code}
    return found


def _committed(connection: Connection, names: Sequence[str]) -> dict[str, Offsets]:
    asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    request = OffsetFetchRequest(groups=asked)
    if not names:
        return {}
    if connection.version_of(request, TOPIC_NAMES) < MANY_GROUPS:
        return {name: _told(connection, name) for name in names}
    answer = connection.ask(request, OffsetFetchResponse, newest=TOPIC_NAMES)
    return {
        group.group_id: {
            (topic.name, one.partition_index): one.committed_offset
            for topic in group.topics
            for one in topic.partitions
            if one.committed_offset >= 0 and not one.error_code
        }
        for group in answer.groups
    }


def _told(connection: Connection, name: str) -> Offsets:
    try:
        return committed_at(connection, name)
    except AnswerError:
        return {}
