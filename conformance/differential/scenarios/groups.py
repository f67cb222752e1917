"""FindCoordinator, and the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

from conformance.differential.scenario import Draw, Learn, Ref, Step, learned, remember, scenario
from conformance.differential.scenarios.base import DATA, EMPTY
from conformance.differential.world import World

SESSION_MS = 600_000
"""So long that no member is lost to a slow run."""
# Versions that 3.9 and 4.x both serve, for requests that only prepare or observe. Joining at 3, nobody is sent
# back for a member id.
JOIN, JOIN_STATIC, SYNC, BEAT, LEAVE, DESCRIBE, COMMIT, FETCH = 3, 5, 3, 3, 3, 5, 8, 7
GROUP, TRANSACTION, SHARE = 0, 1, 2
LARGE_BYTES = 2 << 20
"""More than an internal topic takes in one batch."""


def subscription(*topics: str) -> bytes:
    """What a consumer says of itself when it joins."""
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + named + struct.pack(">i", -1)


def joining(
    group: str, member: Any = "", protocols: tuple[str, ...] = ("range",), **more: Any
) -> dict[str, Any]:
    return {
        "GroupId": group,
        "SessionTimeoutMs": SESSION_MS,
        "RebalanceTimeoutMs": SESSION_MS,
        "MemberId": member,
        "ProtocolType": "consumer",
        "Protocols": [{"Name": name, "Metadata": subscription(DATA)} for name in protocols],
        **more,
    }


def syncing(group: str, member: Any, generation: int = 1, **more: Any) -> dict[str, Any]:
    return {"GroupId": group, "GenerationId": generation, "MemberId": member, **more}


def beating(group: str, member: Any, generation: int = 1, **more: Any) -> dict[str, Any]:
    return {"GroupId": group, "GenerationId": generation, "MemberId": member, **more}


def as_member(slot: str) -> Learn:
    return remember(MemberId=slot)


def join(group: str, slot: str, **more: Any) -> Step:
    """The first member of a group joins, as a step that prepares."""
    return Step(joining(group, **more), api="JoinGroup", version=JOIN, learn=as_member(slot))


def sync(group: str, slot: str, generation: int = 1, share: bytes = b"share") -> Step:
    """The leader gives itself all there is."""
    member = learned(slot, "")
    assigned = [{"MemberId": member, "Assignment": share}]
    return Step(syncing(group, member, generation, Assignments=assigned), api="SyncGroup", version=SYNC)


def stable(draw: Draw, stem: str = "group", **more: Any) -> tuple[str, str, Ref, list[Step]]:
    """A group of one member, stable at generation 1: its name, the member's slot and id, and how it comes."""
    group = draw.fresh(stem)
    slot = f"member {group}"
    return group, slot, learned(slot, ""), [join(group, slot, **more), sync(group, slot)]


def describe(*groups: str, note: str = "") -> Step:
    return Step({"Groups": list(groups)}, api="DescribeGroups", version=DESCRIBE, note=note)


def state_is(group: str, state: str, members: int) -> Callable[[World], bool]:
    def holds(world: World) -> bool:
        found = world.connection.call("DescribeGroups", DESCRIBE, {"Groups": [group]})["Groups"][0]
        return bool(found["GroupState"] == state and len(found["Members"]) == members)

    return holds


@scenario("FindCoordinator")
def find(draw: Draw, version: int) -> Iterator[Step]:
    names = [draw.fresh("group"), "", "with space", "\u00fcml\u00e4ut", "x" * 300]
    kinds = (GROUP,) if version < 1 else (GROUP, SHARE, 3, -1)
    for kind in kinds:
        for name in names:
            body = {"KeyType": kind} | ({"Key": name} if version < 4 else {"CoordinatorKeys": [name]})
            yield Step(body, note=f"kind {kind}, {name[:10]!r}")
    if version >= 4:
        yield Step({"KeyType": GROUP, "CoordinatorKeys": names})
        yield Step({"KeyType": GROUP, "CoordinatorKeys": []}, note="nobody")
        yield Step({"KeyType": GROUP, "CoordinatorKeys": [names[0], names[0]]}, note="repeated")
        yield Step({"KeyType": 7, "CoordinatorKeys": names[:1]}, note="a kind that is none")


@scenario("JoinGroup")
def join_and_leave(draw: Draw, version: int) -> Iterator[Step]:
    """One member from its first request to its last."""
    group = draw.fresh("group")
    slot = f"member {group}"
    me = learned(slot, "")
    yield Step(joining(group, protocols=("range", "sticky")), learn=as_member(slot), note="first")
    if version >= 4:
        yield Step(
            joining(group, me, protocols=("range", "sticky")), learn=as_member(slot), note="with its id"
        )
    yield describe(group, note="joined")
    yield Step(beating(group, me), api="Heartbeat", version=BEAT, note="before it synced")
    yield Step(commit(group, me, 1), api="OffsetCommit", version=COMMIT, note="before it synced")
    yield sync(group, slot)
    yield describe(group, note="stable")
    yield Step(beating(group, me), api="Heartbeat", version=BEAT)
    yield Step(commit(group, me, 1), api="OffsetCommit", version=COMMIT)
    yield Step(commit(group, me, 0), api="OffsetCommit", version=COMMIT, note="old generation")
    yield Step(commit(group, me, 2), api="OffsetCommit", version=COMMIT, note="generation to come")
    yield Step(commit(group, me, -1), api="OffsetCommit", version=COMMIT, note="no generation")
    yield Step(commit(group, "", -1), api="OffsetCommit", version=COMMIT, note="nobody")
    yield Step(commit(group, "somebody", 1), api="OffsetCommit", version=COMMIT, note="somebody else")
    yield Step(joining(group, me, protocols=("range", "sticky")), note="the leader again, the same")
    yield describe(group, note="the leader came again")
    yield sync(group, slot, 2, b"other share")
    yield Step(joining(group, me, protocols=("sticky",)), note="again, with another protocol")
    yield sync(group, slot, 3)
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield describe(group, note="empty")
    yield Step(commit(group, me, 3), api="OffsetCommit", version=COMMIT, note="after it left")
    yield Step(commit(group, "", -1), api="OffsetCommit", version=COMMIT, note="an admin of an empty group")
    yield Step(joining(group, me), note="its id after it left")
    yield Step(joining(group, protocols=("other",)), learn=as_member(slot), note="a new member")


def commit(group: str, member: Any, generation: int, **more: Any) -> dict[str, Any]:
    inner = {"PartitionIndex": 0, "CommittedOffset": 5, "CommittedMetadata": "here"}
    return {
        "GroupId": group,
        "GenerationIdOrMemberEpoch": generation,
        "MemberId": member,
        "Topics": [{"Name": DATA, "Partitions": [inner]}],
        **more,
    }


@scenario("JoinGroup")
def join_wrong(draw: Draw, version: int) -> Iterator[Step]:
    def ask(note: str, **more: Any) -> Step:
        return Step(joining(draw.fresh("group")) | more, note=note)

    yield ask("no group id", GroupId="")
    yield ask("an unknown member", MemberId="somebody")
    for session in (0, -1, 1, 5_999, 6_000, 1_800_000, 1_800_001, 2**31 - 1):
        yield ask(f"session {session}", SessionTimeoutMs=session)
    for rebalance in (0, -1, -2, 1):
        yield ask(f"rebalance {rebalance}", RebalanceTimeoutMs=rebalance)
    yield ask("no protocol type", ProtocolType="")
    yield ask("no protocols", Protocols=[])
    yield ask("no type, no protocols", ProtocolType="", Protocols=[])
    yield ask("a protocol without a name", Protocols=[{"Name": "", "Metadata": b"x"}])
    yield ask("no metadata", Protocols=[{"Name": "a", "Metadata": b""}])
    yield ask(
        "metadata of its own", ProtocolType="connect", Protocols=[{"Name": "v1", "Metadata": b"\0\1junk"}]
    )
    yield ask("a strange group id", GroupId="strange \u00e4 name/" + draw.label)
    if version >= 4:  # Before, Kafka fails on it and never answers.
        twice = [{"Name": "a", "Metadata": b"x"}, {"Name": "a", "Metadata": b"y"}]
        yield ask("a protocol twice", Protocols=twice)
    if version >= 5:
        for instance in ("", ".", "..", "bad name", "x" * 250, "good.name-1_2"):
            yield ask(f"instance {instance[:10]!r}", GroupInstanceId=instance)
        yield ask("instance and unknown member", GroupInstanceId="i", MemberId="somebody")
    if version >= 8:
        yield ask("a reason", Reason="because")
        yield ask("a long reason", Reason="because " * 100)


@scenario("JoinGroup")
def join_second(draw: Draw, version: int) -> Iterator[Step]:
    """A second member joins a stable group: both have to come again."""
    group, _first, me, steps = stable(draw)
    yield from steps
    second = f"member second {group}"
    you = learned(second, "")
    other = joining(group, ProtocolType="connect")
    yield Step(other, note="another protocol type")
    yield Step(joining(group, protocols=("other",)), note="no protocol in common")
    if version >= 4:
        yield Step(joining(group), learn=as_member(second), note="for an id")
        yield describe(group, note="one has an id only")
    body = joining(group, you if version >= 4 else "", protocols=("other", "range"))
    yield Step(body, on="second", later=True, until=state_is(group, "PreparingRebalance", 2))
    yield Step(beating(group, me), api="Heartbeat", version=BEAT, note="while it waits")
    yield Step(commit(group, me, 1), api="OffsetCommit", version=COMMIT, note="while it waits")
    yield Step(syncing(group, me), api="SyncGroup", version=SYNC, note="while it waits")
    yield Step(joining(group, me), api="JoinGroup", version=JOIN, note="the leader comes again")
    yield Step(body, on="second", collect=True, learn=as_member(second))
    yield describe(group, note="both joined")
    yield Step(
        syncing(group, you, 2),
        on="second",
        later=True,
        api="SyncGroup",
        version=SYNC,
        note="it waits to be told",
    )
    yield Step(beating(group, me, 2), api="Heartbeat", version=BEAT, note="while nobody was told")
    yield Step(beating(group, me, 1), api="Heartbeat", version=BEAT, note="in the generation before")
    shares = [{"MemberId": me, "Assignment": b"mine"}, {"MemberId": you, "Assignment": b"yours"}]
    yield Step(
        syncing(group, me, 2, Assignments=shares), api="SyncGroup", version=SYNC, note="the leader tells"
    )
    yield Step(syncing(group, you, 2), on="second", collect=True, api="SyncGroup", version=SYNC)
    yield describe(group, note="both stable")
    yield Step(joining(group, you, protocols=("other", "range")), note="a follower again, the same")
    yield Step(beating(group, you, 2), api="Heartbeat", version=BEAT)
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield describe(group, note="the leader left")
    yield Step(joining(group, you, protocols=("other", "range")), note="the one that is left")
    yield sync(group, second, 3)
    yield describe(group, note="one again")


@scenario("JoinGroup")
def join_static(draw: Draw, version: int) -> Iterator[Step]:
    if version < 5:
        return
    group = draw.fresh("group")
    first, second = f"member first {group}", f"member second {group}"
    me, again = learned(first, ""), learned(second, "")
    body = joining(group, GroupInstanceId="instance")
    yield Step(body, learn=as_member(first), note="first")
    yield sync(group, first)
    yield describe(group, note="stable")
    yield Step(body, learn=as_member(second), note="the same instance in a new process")
    yield describe(group, note="replaced")
    for version_of, api, ask in ((BEAT, "Heartbeat", beating), (SYNC, "SyncGroup", syncing)):
        for member, who in ((me, "old id"), (again, "new id"), ("somebody", "unknown id"), ("", "no id")):
            asked = ask(group, member, GroupInstanceId="instance")
            yield Step(asked, api=api, version=version_of, note=f"{who}")
        yield Step(
            ask(group, again, GroupInstanceId="other"), api=api, version=version_of, note="other instance"
        )
        yield Step(ask(group, again), api=api, version=version_of, note="no instance")
    for member, who in ((me, "old id"), (again, "new id"), ("somebody", "unknown id")):
        asked = commit(group, member, 1, GroupInstanceId="instance")
        yield Step(asked, api="OffsetCommit", version=COMMIT, note=who)
    yield Step(joining(group, me, GroupInstanceId="instance"), note="the one that was replaced")
    yield Step(joining(group, "somebody", GroupInstanceId="instance"), note="an unknown id of the instance")
    yield Step(joining(group, again, GroupInstanceId="instance"), note="again, the same")
    yield Step(
        joining(group, protocols=("sticky",), GroupInstanceId="instance"),
        learn=as_member(first),
        note="a new process with another protocol",
    )
    yield describe(group, note="at last")
    yield leave_static(group, "other", "unknown instance")
    yield leave_static(group, "instance", "by instance")
    yield describe(group, note="left")


def leave_static(group: str, instance: str, note: str) -> Step:
    body = {"GroupId": group, "Members": [{"MemberId": "", "GroupInstanceId": instance}]}
    return Step(body, api="LeaveGroup", version=LEAVE, note=note)


@scenario("SyncGroup")
def sync_too_large(draw: Draw, version: int) -> Iterator[Step]:
    """More than one record of the offsets topic holds."""
    group = draw.fresh("group")
    slot = f"member {group}"
    me = learned(slot, "")
    named: dict[str, Any] = {"ProtocolType": "consumer", "ProtocolName": "range"} if version >= 5 else {}
    yield join(group, slot)
    shares = [{"MemberId": me, "Assignment": bytes(LARGE_BYTES)}]
    yield Step(syncing(group, me, Assignments=shares, **named), note="too large")
    yield describe(group, note="after too large")
    yield Step(beating(group, me), api="Heartbeat", version=BEAT, note="after too large")
    yield join(group, slot, MemberId=me)
    shares = [{"MemberId": me, "Assignment": b"share"}]
    yield Step(syncing(group, me, 2, Assignments=shares, **named), note="smaller")
    yield describe(group, note="smaller")


@scenario("SyncGroup")
def sync_kinds(draw: Draw, version: int) -> Iterator[Step]:
    group = draw.fresh("group")
    slot = f"member {group}"
    me = learned(slot, "")
    yield Step(syncing(group, "somebody"), note="a group never seen")
    yield Step(syncing("", "somebody"), note="no group id")
    yield join(group, slot)
    yield Step(syncing(group, "somebody"), note="an unknown member")
    yield Step(syncing(group, ""), note="no member id")
    for generation in (0, 2, -1):
        yield Step(syncing(group, me, generation), note=f"generation {generation}")
    if version >= 5:
        yield Step(syncing(group, me, ProtocolType="connect", ProtocolName="range"), note="another type")
        yield Step(
            syncing(group, me, ProtocolType="consumer", ProtocolName="sticky"), note="another protocol"
        )
    if version >= 3:
        yield Step(syncing(group, me, GroupInstanceId="unknown"), note="an unknown instance")
    shares = [{"MemberId": me, "Assignment": b"share"}, {"MemberId": "somebody", "Assignment": b"nothing"}]
    named: dict[str, Any] = {"ProtocolType": "consumer", "ProtocolName": "range"} if version >= 5 else {}
    yield Step(syncing(group, me, Assignments=shares, **named), note="with a share for nobody")
    yield Step(syncing(group, me, **named), note="again, stable")
    yield Step(syncing(group, me), note="again, without names")
    yield describe(group)
    if version >= 5:
        yield Step(
            syncing(group, me, ProtocolType="connect", ProtocolName="range"), note="another type, stable"
        )
        yield Step(syncing(group, me, ProtocolType="consumer", ProtocolName=""), note="no protocol, stable")
    yield Step(joining(group, me), api="JoinGroup", version=JOIN)
    yield Step(syncing(group, me, 2, **named), note="no shares at all")
    yield describe(group)
    yield Step(joining(group, me), api="JoinGroup", version=JOIN)
    twice = [{"MemberId": me, "Assignment": b"one"}, {"MemberId": me, "Assignment": b"two"}]
    yield Step(syncing(group, me, 3, Assignments=twice, **named), note="a share twice")
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield Step(syncing(group, me, 3), note="after it left")


@scenario("Heartbeat")
def beat_kinds(draw: Draw, version: int) -> Iterator[Step]:
    group, _slot, me, steps = stable(draw)
    yield Step(beating(group, "somebody"), note="a group never seen")
    yield Step(beating("", "somebody"), note="no group id")
    yield from steps
    yield Step(beating(group, me))
    yield Step(beating(group, "somebody"), note="an unknown member")
    yield Step(beating(group, ""), note="no member id")
    for generation in (0, 2, -1):
        yield Step(beating(group, me, generation), note=f"generation {generation}")
    if version >= 3:
        yield Step(beating(group, me, GroupInstanceId="unknown"), note="an unknown instance")
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield Step(beating(group, me), note="after it left")
    yield Step(beating(group, me, -1), note="no generation, empty")


@scenario("LeaveGroup")
def leave_kinds(draw: Draw, version: int) -> Iterator[Step]:
    def leave(group: str, member: Any, note: str, **more: Any) -> Step:
        one = {"MemberId": member} | more
        return Step({"GroupId": group} | ({"Members": [one]} if version >= 3 else one), note=note)

    group, slot, me, steps = stable(draw)
    yield leave(group, "somebody", "a group never seen")
    yield leave("", "somebody", "no group id")
    yield from steps
    yield leave(group, "somebody", "an unknown member")
    yield leave(group, "", "no member id")
    if version >= 3:
        yield leave(group, me, "an unknown instance", GroupInstanceId="unknown")
        yield leave(group, "", "only an unknown instance", GroupInstanceId="unknown")
        yield Step({"GroupId": group, "Members": []}, note="nobody")
        both = [{"MemberId": "somebody"}, {"MemberId": me}, {"MemberId": me}]
        yield Step({"GroupId": group, "Members": both}, note="one unknown, one twice")
    else:
        yield leave(group, me, "")
    yield describe(group)
    yield leave(group, me, "again")
    pending = draw.fresh("group")
    slot = f"member {pending}"
    yield Step(joining(pending), api="JoinGroup", version=4, learn=as_member(slot), note="for an id")
    yield leave(pending, learned(slot, ""), "one that has only an id")
    yield leave(pending, learned(slot, ""), "again")
    if version < 3:
        return
    group = draw.fresh("group")
    slot = f"member {group}"
    body = joining(group, GroupInstanceId="instance")
    yield Step(body, api="JoinGroup", version=JOIN_STATIC, learn=as_member(slot))
    yield sync(group, slot)
    yield leave(group, "somebody", "the instance of another id", GroupInstanceId="instance")
    if version >= 5:
        yield leave(group, learned(slot, ""), "instance and id", GroupInstanceId="instance", Reason="because")
    yield leave(group, "", "instance", GroupInstanceId="instance")
    yield describe(group)


@scenario("Heartbeat")
def rebalance_alone(draw: Draw, version: int) -> Iterator[Step]:
    """A member that comes again with another subscription starts a generation of its own."""
    group, slot, me, steps = stable(draw)
    yield from steps
    changed = [{"Name": "range", "Metadata": subscription(DATA, EMPTY)}]
    yield Step(joining(group, me, Protocols=changed), api="JoinGroup", version=JOIN)
    yield Step(beating(group, me, 1), note="the generation before")
    yield Step(beating(group, me, 2), note="the new one, before it synced")
    yield sync(group, slot, 2)
    yield Step(beating(group, me, 2), note="the new one")
    yield describe(group)
