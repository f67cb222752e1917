"""Groups that change: members of both protocols share, fall silent, come too late, move between protocols."""

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from conformance.differential.scenario import Draw, Step, learned, remember, scenario
from conformance.differential.scenarios.base import DATA, SMALL
from conformance.differential.scenarios.consumer_groups import LEAVING, described, entering, owns, staying
from conformance.differential.scenarios.group_offsets import committing, part
from conformance.differential.scenarios.groups import (
    BEAT,
    DESCRIBE,
    JOIN,
    LEAVE,
    SYNC,
    as_member,
    beating,
    describe,
    joining,
    stable,
    state_is,
    sync,
    syncing,
)
from conformance.differential.world import World

SESSION_MIN_MS = 6_000
REBALANCE_MS = 4_000
"""How long a rebalance waits: long enough to see that it waits, however slow the machine is."""
CONSUMER_BEAT = ("ConsumerGroupHeartbeat", 1)


def assigned(topic: str, *partitions: int) -> bytes:
    """What a leader gives to a consumer: a topic and partitions of it."""
    named = struct.pack(">h", len(topic)) + topic.encode()
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hi", 0, 1) + named + numbers + struct.pack(">i", -1)


def after(seconds: float) -> Callable[[World], bool]:
    """Time passes, the same for both brokers."""
    began: dict[str, float] = {}

    def holds(world: World) -> bool:
        return time.monotonic() - began.setdefault(world.name, time.monotonic()) >= seconds

    return holds


@scenario("JoinGroup")
def silent_member(draw: Draw, version: int) -> Iterator[Step]:
    """A member that says nothing for its session is gone; one that has only an id loses that."""
    if version not in (0, 5, 9):
        return
    group = draw.fresh("group")
    slot = f"member {group}"
    body = joining(group, SessionTimeoutMs=SESSION_MIN_MS)
    yield Step(body, learn=as_member(slot))
    pending = draw.fresh("group")
    other = f"member {pending}"
    if version >= 4:
        yield Step(body | {"MemberId": learned(slot, "")}, learn=as_member(slot))
        yield Step(
            joining(pending, SessionTimeoutMs=SESSION_MIN_MS), learn=as_member(other), note="an id only"
        )
    yield sync(group, slot)
    wait = {"Groups": [group]}
    yield Step(wait, api="DescribeGroups", version=DESCRIBE, on="wait", later=True, until=after(4.0))
    yield Step(wait, api="DescribeGroups", version=DESCRIBE, on="wait", collect=True, note="soon after")
    yield describe(group, note="4 s later")
    yield Step(wait, api="DescribeGroups", version=DESCRIBE, on="wait", later=True, until=after(3.5))
    yield Step(
        wait, api="DescribeGroups", version=DESCRIBE, on="wait", collect=True, note="before it was over"
    )
    yield describe(group, pending, note="7.5 s later")
    yield Step(beating(group, learned(slot, "")), api="Heartbeat", version=BEAT, note="too late")
    yield Step(body | {"MemberId": learned(slot, "")}, note="joins too late")
    if version >= 4:
        yield Step(joining(pending, learned(other, "")), note="an id that is gone")


@scenario("SyncGroup")
def leader_does_not_come_again(draw: Draw, version: int) -> Iterator[Step]:
    """A rebalance waits for members as long as they said, then goes on without them."""
    if version != 5:
        return
    group, _, me, steps = stable(draw, RebalanceTimeoutMs=REBALANCE_MS)
    yield from steps
    second = f"member second {group}"
    you = learned(second, "")
    body = joining(group, RebalanceTimeoutMs=REBALANCE_MS)
    yield Step(
        body,
        api="JoinGroup",
        version=JOIN,
        on="b",
        later=True,
        until=state_is(group, "PreparingRebalance", 2),
    )
    yield Step(body, api="JoinGroup", version=JOIN, on="b", collect=True, learn=as_member(second))
    yield describe(group, note="without the first")
    yield Step(beating(group, me), api="Heartbeat", version=BEAT, note="the first")
    yield Step(syncing(group, me), api="SyncGroup", version=SYNC, note="the first")
    yield Step(joining(group, me), api="JoinGroup", version=JOIN, note="the first")
    shares = [{"MemberId": you, "Assignment": b"all"}]
    yield Step(syncing(group, you, 2, Assignments=shares), api="SyncGroup", version=SYNC)
    yield describe(group, note="at last")


@scenario("SyncGroup")
def leader_never_tells(draw: Draw, version: int) -> Iterator[Step]:
    """A follower waits for its share as long as the members said; then the one that told nothing is out."""
    if version != 5:
        return
    group, _, me, steps = stable(draw)
    yield from steps
    second = f"member second {group}"
    body = joining(group, RebalanceTimeoutMs=REBALANCE_MS)
    yield Step(
        body,
        api="JoinGroup",
        version=JOIN,
        on="b",
        later=True,
        until=state_is(group, "PreparingRebalance", 2),
    )
    yield Step(joining(group, me, RebalanceTimeoutMs=REBALANCE_MS), api="JoinGroup", version=JOIN)
    yield Step(body, api="JoinGroup", version=JOIN, on="b", collect=True, learn=as_member(second))
    you = syncing(group, learned(second, ""), 2)
    yield Step(you, api="SyncGroup", version=SYNC, on="b", later=True)
    yield Step(you, api="SyncGroup", version=SYNC, on="b", collect=True, note="nobody told it")
    yield describe(group, note="the leader told nothing")
    yield Step(beating(group, me, 2), api="Heartbeat", version=BEAT, note="the leader")


@scenario("LeaveGroup")
def leave_while_others_wait(draw: Draw, version: int) -> Iterator[Step]:
    """One joins, one leaves instead of coming again: the rest waits for nobody."""
    if version < 3:
        return
    group, _, me, steps = stable(draw)
    yield from steps
    second = f"member second {group}"
    body = joining(group)
    yield Step(
        body,
        api="JoinGroup",
        version=JOIN,
        on="b",
        later=True,
        until=state_is(group, "PreparingRebalance", 2),
    )
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]})
    yield Step(body, api="JoinGroup", version=JOIN, on="b", collect=True, learn=as_member(second))
    yield sync(group, second, 2)
    yield describe(group)


@scenario("ConsumerGroupHeartbeat")
def consumers_share(draw: Draw, version: int) -> Iterator[Step]:
    """Two members, one topic: what one has to give up, the other gets when it is given up."""
    if version < 1:
        return
    for assignor in ("uniform", "range"):
        group = draw.fresh("group")
        yield Step(entering(group, "one", SubscribedTopicNames=[DATA], ServerAssignor=assignor))
        yield Step(staying(group, "one", 2, **owns(DATA, 0, 1, 2)))
        yield Step(entering(group, "two", SubscribedTopicNames=[DATA]), note="two enters")
        yield described(group, note="two entered")
        yield Step(staying(group, "one", 2), note="one is told")
        yield described(group, note="one was told")
        yield Step(staying(group, "two", 3), note="two waits")
        yield Step(staying(group, "one", 2, **owns(DATA, 0, 1)), note="one has let go of the last")
        yield described(group, note="one has let go of the last")
        yield Step(staying(group, "two", 3), note="two gets")
        yield Step(staying(group, "one", 2, **owns(DATA, 0)), note="one has let go of two")
        yield Step(staying(group, "one", 3), note="one, the new epoch")
        yield Step(staying(group, "two", 3), note="two, the new epoch")
        yield described(group, note="at rest")
        yield Step(entering(group, "three", SubscribedTopicNames=[DATA, SMALL]), note="three enters")
        yield described(group, note="three entered")
        yield Step(staying(group, "one", LEAVING), note="one leaves")
        yield described(group, note="one left")


@scenario("ConsumerGroupHeartbeat")
def classic_becomes_consumer(draw: Draw, version: int) -> Iterator[Step]:
    """A member of the new protocol joins a classic group of consumers, and the classic ones leave it."""
    if version < 1:
        return
    group = draw.fresh("group")
    slot = f"member {group}"
    me = learned(slot, "")
    yield Step(joining(group), api="JoinGroup", version=JOIN, learn=as_member(slot))
    yield sync(group, slot, share=assigned(DATA, 0, 1, 2))
    yield Step(entering(group, "new", SubscribedTopicNames=[DATA]), note="the new one enters")
    yield described(group, note="both kinds")
    yield describe(group, note="both kinds")
    yield Step(beating(group, me), api="Heartbeat", version=BEAT, note="the classic one")
    yield Step(joining(group, me), api="JoinGroup", version=JOIN, note="the classic one comes again")
    yield Step(syncing(group, me, 2), api="SyncGroup", version=SYNC, note="the classic one, generation 2")
    yield Step(syncing(group, me, 3), api="SyncGroup", version=SYNC, note="the classic one, generation 3")
    yield Step(beating(group, me, 3), api="Heartbeat", version=BEAT, note="the classic one, generation 3")
    yield described(group, note="the classic one came again")
    yield Step(staying(group, "new", 2), note="the new one")
    yield Step(staying(group, "new", 3), note="the new one at 3")
    who = {"GenerationIdOrMemberEpoch": 3, "MemberId": me}
    yield Step(committing(8, group, [(DATA, [part(0, 5)])], **who), api="OffsetCommit", version=8)
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield described(group, note="the classic one left")
    yield Step(staying(group, "new", 3), note="the new one alone")
    yield described(group, note="alone")


@scenario("ConsumerGroupHeartbeat")
def consumer_becomes_classic(draw: Draw, version: int) -> Iterator[Step]:
    """A classic consumer joins a group of the new protocol, whose last member then leaves."""
    if version < 1:
        return
    group = draw.fresh("group")
    slot = f"member {group}"
    me = learned(slot, "")
    yield Step(entering(group, "new", SubscribedTopicNames=[DATA]), note="the new one enters")
    yield Step(staying(group, "new", 2, **owns(DATA, 0, 1, 2)), note="and owns")
    yield Step(
        joining(group, protocols=("range", "other")),
        api="JoinGroup",
        version=9,
        learn=as_member(slot),
        note="for an id",
    )
    yield Step(
        joining(group, me, protocols=("range", "other")), api="JoinGroup", version=9, note="the classic one"
    )
    yield described(group, note="both kinds")
    named = {"ProtocolType": "consumer", "ProtocolName": "range"}
    yield Step(syncing(group, me, 3, **named), api="SyncGroup", version=5, note="the classic one")
    yield Step(beating(group, me, 3), api="Heartbeat", version=BEAT, note="the classic one")
    yield Step(staying(group, "new", 2), note="the new one is told")
    yield Step(staying(group, "new", 2, **owns(DATA, 0)), note="the new one has let go")
    yield Step(beating(group, me, 3), api="Heartbeat", version=BEAT, note="the classic one after that")
    yield Step(staying(group, "new", LEAVING), note="the new one leaves")
    yield described(group, note="the new one left")
    yield describe(group, note="the new one left")
    yield Step(beating(group, me, 3), api="Heartbeat", version=BEAT, note="the classic one alone")


@scenario("ConsumerGroupHeartbeat")
def consumer_settings(draw: Draw, version: int) -> Iterator[Step]:
    """What is set for a group is what its members are told."""
    group = draw.fresh("group")
    slot = f"member {group}"
    body = entering(group, "" if version < 1 else "one", SubscribedTopicNames=[DATA])
    yield Step(body, learn=remember(MemberId=slot))

    def change(kind: int, value: str | None) -> Step:
        configs = [{"Name": "consumer.heartbeat.interval.ms", "ConfigOperation": kind, "Value": value}]
        wanted: dict[str, Any] = {"ResourceType": 32, "ResourceName": group, "Configs": configs}
        return Step({"Resources": [wanted]}, api="IncrementalAlterConfigs", version=1)

    yield change(0, "7000")
    yield Step(staying(group, learned(slot, ""), 2), note="set")
    yield change(1, None)
    yield Step(staying(group, learned(slot, ""), 2), note="no longer set")
