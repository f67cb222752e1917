"""A classic consumer, members of the new protocol and a transaction share a group, and take random steps.

The seed draws the steps. There is one classic consumer at a time: the join of a second one waits for the first, and
nobody would be there to send what it waits for. So the group moves between the protocols both ways, on either side
with offsets committed by members, by nobody's member and in transactions, which are deleted and read back.
"""

import struct
from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Learn, Ref, Step, learned, scenario
from conformance.differential.scenarios.base import DATA
from conformance.differential.scenarios.consumer_groups import described
from conformance.differential.scenarios.consumer_walks import Walker
from conformance.differential.scenarios.group_changes import assigned
from conformance.differential.scenarios.group_offsets import committing, fetching, part
from conformance.differential.scenarios.groups import JOIN, SESSION_MS, describe
from conformance.differential.scenarios.transactions import Id, ready
from conformance.differential.world import World
from conformance.wire.codec import Value

WALKS, STEPS = 4, 40
WALKS_FROM = 6
"""A version that is asked of brokers only that have the new protocol."""
PARTITIONS = (0, 1, 2)
JOINS_AT_ONCE = JOIN
"""The version that sends nobody back for a member id."""
READY_WITHIN_S = 0.2


def subscribed(version: int, topic: str, owned: tuple[int, ...], generation: int) -> bytes:
    """What a consumer says of itself, as consumers of each age do."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    said = struct.pack(">hi", version, 1) + name + struct.pack(">i", -1)
    if version >= 1:
        mine = name + struct.pack(f">i{len(owned)}i", len(owned), *owned) if owned else b""
        said += struct.pack(">i", 1 if owned else 0) + mine
    if version >= 2:
        said += struct.pack(">i", generation)
    return said + struct.pack(">h", -1) if version >= 3 else said


class Classic:
    """The classic consumer. Its id is made up by the broker, in one form or another, and is below those of others."""

    def __init__(self, draw: Draw, group: str) -> None:
        self.draw = draw
        self.group = group
        self.slot = f"classic of {group}"
        self.instance = draw.pick(None, None, "instance-classic")
        self.speaks = draw.pick(0, 1, 2, 3)
        self.id = learned(f"{self.slot} id", "")
        self.generation = learned(f"{self.slot} generation", 1)
        self.entered = False

    def heard(self) -> Learn:
        def learn(world: World, answer: Value) -> None:
            if answer["MemberId"]:
                world.learned[f"{self.slot} id"] = answer["MemberId"]
            if answer["ErrorCode"] == 0:
                world.learned[f"{self.slot} generation"] = answer["GenerationId"]
                world.learned[f"{self.slot} leads"] = answer["Leader"] == answer["MemberId"]

        return learn

    def joins(self, *, anew: bool) -> Step:
        version = 9 if self.instance else self.draw.pick(JOINS_AT_ONCE, 9)
        owned = () if anew else self.draw.pick((), (0,), PARTITIONS)

        def said(world: World) -> bytes:
            generation = world.learned.get(f"{self.slot} generation", 1)
            return subscribed(self.speaks, DATA, owned, -1 if anew else generation)

        body = {
            "GroupId": self.group,
            "SessionTimeoutMs": SESSION_MS,
            "RebalanceTimeoutMs": SESSION_MS,
            "MemberId": "" if anew else self.id,
            "GroupInstanceId": self.instance,
            "ProtocolType": "consumer",
            "Protocols": [{"Name": "range", "Metadata": Ref("what it says of itself", said)}],
        }
        note = f"classic joins {'anew' if anew else f'again, owns {owned}'}"
        return Step(body, api="JoinGroup", version=version, learn=self.heard(), note=note)

    def syncs(self) -> Step:
        def shares(world: World) -> list[dict[str, Any]]:
            if not world.learned.get(f"{self.slot} leads"):
                return []
            mine = world.learned.get(f"{self.slot} id", "")
            return [{"MemberId": mine, "Assignment": assigned(DATA, *PARTITIONS)}]

        body = {
            "GroupId": self.group,
            "GenerationId": self.generation,
            "MemberId": self.id,
            "GroupInstanceId": self.instance,
            "ProtocolType": "consumer",
            "ProtocolName": "range",
            "Assignments": Ref("shares", shares),
        }
        return Step(body, api="SyncGroup", version=5, note="classic syncs")

    def steps(self) -> Iterator[Step]:
        who = {
            "GroupId": self.group,
            "MemberId": self.id,
            "GenerationId": self.generation,
            "GroupInstanceId": self.instance,
        }
        chance = self.draw.chance.random()
        if not self.entered:
            self.entered = True
            yield self.joins(anew=True)
            yield self.joins(anew=False)
            yield self.syncs()
        elif chance < 0.3:
            yield Step(who, api="Heartbeat", version=4, note="classic beats")
        elif chance < 0.5:
            yield self.joins(anew=bool(self.instance) and self.draw.pick(True, False))
        elif chance < 0.75:
            yield self.syncs()
        elif chance < 0.85:
            member = {"GenerationIdOrMemberEpoch": self.generation, "MemberId": self.id}
            topics = [(DATA, [part(self.draw.pick(0, 1), self.draw.chance.randrange(99))])]
            body = committing(8, self.group, topics, GroupInstanceId=self.instance, **member)
            yield Step(body, api="OffsetCommit", version=8, note="classic commits")
        else:
            self.entered = False
            mine: Any = "" if self.instance else self.id
            named = {"MemberId": mine, "GroupInstanceId": self.instance}
            body = {"GroupId": self.group, "Members": [named]}
            yield Step(body, api="LeaveGroup", version=5, note="classic leaves")


def others(draw: Draw, group: str, id: Id, members: list[tuple[Any, Any, Any]]) -> Iterator[Step]:
    """Whoever is no member: a transaction that names a member or none, and administrators."""
    chance = draw.chance.random()
    offset = [part(draw.pick(0, 1), draw.chance.randrange(99))]
    if chance < 0.4:
        member, generation, instance = draw.pick(("", -1, None), *members)
        body = {
            "TransactionalId": id.name,
            "GroupId": group,
            "GenerationId": generation,
            "MemberId": member,
            "GroupInstanceId": instance,
            "Topics": [{"Name": DATA, "Partitions": offset}],
            **id.given(),
        }
        yield Step(body, api="TxnOffsetCommit", version=5, note="in a transaction")
    elif chance < 0.65:
        yield id.ended(draw.pick(True, False), 5)
        yield from id.settled(READY_WITHIN_S)
    elif chance < 0.75:
        yield Step(
            committing(8, group, [(DATA, offset)]), api="OffsetCommit", version=8, note="nobody's member"
        )
    elif chance < 0.9:
        partitions = [{"PartitionIndex": at} for at in (0, 1)]
        body = {"GroupId": group, "Topics": [{"Name": DATA, "Partitions": partitions}]}
        yield Step(body, api="OffsetDelete", version=0)
    else:
        yield Step({"GroupsNames": [group]}, api="DeleteGroups", version=2)


def looked_at(group: str) -> Iterator[Step]:
    yield described(group)
    yield describe(group)
    yield Step({}, api="ListGroups", version=5, only=group)
    for stable in (True, False):
        yield Step(
            fetching(9, group, [(DATA, [0, 1])], stable=stable),
            api="OffsetFetch",
            version=9,
            note=f"{stable}",
        )


@scenario("JoinGroup")
def group_walk(draw: Draw, version: int) -> Iterator[Step]:
    """The version chooses nothing here but other steps."""
    if version < WALKS_FROM:
        return
    yield from ready(draw)
    for _ in range(WALKS):
        group, id = draw.fresh("group"), Id(draw)
        yield Step({"KeyType": 0, "CoordinatorKeys": [group]}, api="FindCoordinator", version=4)
        yield id.begun()
        classic = Classic(draw, group)
        walkers = [Walker(draw, group, DATA, name) for name in ("zzz-one", "zzz-two")]
        members: list[tuple[Any, Any, Any]] = [(classic.id, classic.generation, classic.instance)]
        members += [(one.name, one.epoch, one.instance) for one in walkers]
        for _ in range(STEPS):
            chance = draw.chance.random()
            if chance < 0.35:
                yield from classic.steps()
            elif chance < 0.75:
                yield draw.pick(*walkers).step()
            else:
                yield from others(draw, group, id, members)
            yield from looked_at(group)
