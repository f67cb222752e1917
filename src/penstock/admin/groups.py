"""Consumer groups of both protocols: who is in them, where they stand, and their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.admin.offsets import LATEST, Offsets, Place, committed_at, coordinator, list_offsets
from penstock.client import AnswerError, Client, ClientError, Connection
from penstock.wire.api.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.api.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.api.describe_groups import (
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.wire.api.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.wire.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from penstock.wire.codec import decode_versioned
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolAssignment

WITHOUT_MEMBERS = ("Empty", "Dead")


class Member(NamedTuple):
    id: str
    client_id: str
    host: str
    assigned: tuple[Place, ...]


class Group(NamedTuple):
    name: str
    state: str
    members: tuple[Member, ...]

    def owners(self) -> dict[Place, Member]:
        return {place: member for member in self.members for place in member.assigned}


class Position(NamedTuple):
    """Where a group stands in one partition."""

    place: Place
    committed: int | None
    end: int | None
    """None: the topic is gone, its committed offset is not yet; or its leader does not answer."""
    owner: Member | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


def list_groups(client: Client) -> list[ListedGroup]:
    """Each broker lists the groups that it coordinates."""
    found: dict[str, ListedGroup] = {}
    for broker in client.metadata([]).brokers:
        answer = client.broker(broker.node_id).ask(ListGroupsRequest(), ListGroupsResponse)
        if answer.error_code:
            raise AnswerError(answer.error_code, f"The question for groups to broker {broker.node_id}")
        found.update((group.group_id, group) for group in answer.groups)
    return sorted(found.values(), key=lambda group: group.group_id)


def describe_group(client: Client, name: str) -> Group:
    """A group of either protocol. One that does not exist is Dead."""
    return _described(coordinator(client, name), name)


def _described(broker: Connection, name: str) -> Group:
    if broker.knows(ConsumerGroupDescribeRequest.api_key):
        request = ConsumerGroupDescribeRequest(group_ids=[name])
        found = broker.ask(request, ConsumerGroupDescribeResponse).groups[0]
        if not found.error_code:
            members = [
                Member(
                    member.member_id,
                    member.client_id,
                    member.client_host,
                    tuple(
                        (topic.topic_name, partition)
                        for topic in member.assignment.topic_partitions
                        for partition in topic.partitions
                    ),
                )
                for member in found.members
            ]
            return Group(name, found.group_state, tuple(members))
    answer = broker.ask(DescribeGroupsRequest(groups=[name]), DescribeGroupsResponse, newest=5)
    described = answer.groups[0]
    if described.error_code:
        raise AnswerError(described.error_code, f"The question for group {name!r}")
    return Group(name, described.group_state, tuple(map(_classic, described.members)))


def _classic(member: DescribedGroupMember) -> Member:
    places: tuple[Place, ...] = ()
    try:
        assigned = decode_versioned(ConsumerProtocolAssignment, member.member_assignment, newer_ok=True)
        places = tuple(
            (topic.topic, partition)
            for topic in assigned.assigned_partitions
            for partition in topic.partitions
        )
    except WireError:
        pass  # not yet assigned, or a group that is not of consumers
    return Member(member.member_id, member.client_id, member.client_host, places)


def existing_group(client: Client, name: str) -> tuple[Group, Offsets]:
    """A group that is there, and what it committed."""

    def ask() -> tuple[Group, Offsets]:
        broker = coordinator(client, name)
        return _described(broker, name), committed_at(broker, name, require_stable=True)

    group, offsets = client.retry(ask)
    if group.state == "Dead" and not offsets:
        raise ClientError(f"There is no group {name!r}.")
    return group, offsets


def positions(client: Client, group: Group, offsets: Mapping[Place, int]) -> Iterator[Position]:
    """Where a group stands, in order of topics and partitions."""
    owners = group.owners()
    places = sorted({*offsets, *owners})
    ends = list_offsets(client, places, LATEST)
    if len(ends) < len(places):
        client.refresh()  # a leader may have moved
        ends |= list_offsets(client, [place for place in places if place not in ends], LATEST)
    for place in places:
        yield Position(place, offsets.get(place), ends.get(place), owners.get(place))


def delete_group(client: Client, name: str) -> None:
    answer = coordinator(client, name).ask(DeleteGroupsRequest(groups_names=[name]), DeleteGroupsResponse)
    code = answer.results[0].error_code
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise ClientError(f"There is no group {name!r}.")
    if code == ErrorCode.NON_EMPTY_GROUP:
        raise ClientError(f"Group {name!r} has members: stop them before it is deleted.")
    if code:
        raise AnswerError(code, f"Deleting group {name!r}")


def delete_offsets(client: Client, name: str, topic: str, partitions: list[int]) -> None:
    """Forget what a group committed of a topic that none of its members reads."""
    asked = [OffsetDeleteRequestPartition(partition_index=one) for one in partitions]
    request = OffsetDeleteRequest(
        group_id=name, topics=[OffsetDeleteRequestTopic(name=topic, partitions=asked)]
    )
    answer = coordinator(client, name).ask(request, OffsetDeleteResponse)
    codes = [answer.error_code, *(one.error_code for told in answer.topics for one in told.partitions)]
    for code in filter(None, codes):
        if code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
            raise ClientError(f"Members of group {name!r} read {topic!r}: stop them first.")
        if code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise ClientError(f"There is no group {name!r}.")
        raise AnswerError(code, f"Forgetting the offsets of group {name!r} in {topic!r}")
