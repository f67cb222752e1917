"""DescribeGroups, ListGroups, DeleteGroups, and the settings of groups."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Step, learned, scenario
from conformance.differential.scenarios.base import DATA, EMPTY
from conformance.differential.scenarios.consumer_groups import beat, entering
from conformance.differential.scenarios.group_offsets import committed, part, prepared
from conformance.differential.scenarios.groups import (
    JOIN,
    LEAVE,
    SYNC,
    as_member,
    describe,
    join,
    joining,
    stable,
    sync,
    syncing,
)

GROUP_RESOURCE = 32


@scenario("DescribeGroups")
def describe_groups(draw: Draw, version: int) -> Iterator[Step]:
    def ask(*groups: str, note: str = "", **more: Any) -> Step:
        return Step({"Groups": list(groups), **more}, note=note)

    never, plain = draw.fresh("group"), draw.fresh("group")
    yield ask(never, note="never seen")
    yield ask("", note="no group id")
    yield ask(note="nobody")
    yield ask(never, never, note="repeated")
    yield prepared(plain, (DATA, [part(0, 1)]))
    yield ask(plain, note="offsets only")
    group, slot, me, steps = stable(draw)
    yield join(group, slot)
    yield ask(group, note="joined")
    yield sync(group, slot)
    yield ask(group, note="stable")
    yield ask(group, plain, never, "", note="several")
    if version >= 3:
        yield ask(group, plain, never, IncludeAuthorizedOperations=True, note="operations")
    other, slot, _, steps = stable(
        draw, ProtocolType="connect", Protocols=[{"Name": "v1", "Metadata": b"any"}]
    )
    yield from steps
    yield ask(other, note="connect")
    static = draw.fresh("group")
    yield Step(joining(static, GroupInstanceId="instance"), api="JoinGroup", version=5)
    yield ask(static, note="static")
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield ask(group, note="empty")
    yield Step({"GroupsNames": [group]}, api="DeleteGroups", version=1)
    yield ask(group, note="deleted")
    if version >= 6:
        name = draw.fresh("group")
        yield beat(entering(name, "one", SubscribedTopicNames=[DATA]))
        yield ask(name, note="of the new protocol")


@scenario("ListGroups")
def list_groups(draw: Draw, version: int) -> Iterator[Step]:
    def ask(note: str = "", **filters: Any) -> Step:
        return Step(filters, note=note, only=draw.label)

    plain = draw.fresh("group")
    yield prepared(plain, (DATA, [part(0, 1)]))
    _group, _slot, _me, steps = stable(draw)
    yield from steps
    other, _, you, steps = stable(
        draw, ProtocolType="connect", Protocols=[{"Name": "v1", "Metadata": b"any"}]
    )
    yield from steps
    yield Step({"GroupId": other, "Members": [{"MemberId": you}]}, api="LeaveGroup", version=LEAVE)
    waiting = draw.fresh("group")
    yield join(waiting, f"member {waiting}")
    if version >= 5:
        name = draw.fresh("group")
        yield beat(entering(name, "one", SubscribedTopicNames=[DATA]))
    yield ask()
    if version >= 4:
        states = ("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Dead", "stable", "EMPTY")
        for state in (*states, "Assigning", "Reconciling", "NotReady", "Unknown", "", "nonsense"):
            yield ask(f"state {state!r}", StatesFilter=[state])
        yield ask("two states", StatesFilter=["Stable", "Empty"])
        yield ask("one that is none", StatesFilter=["Stable", "nonsense"])
    if version >= 5:
        for kind in ("classic", "consumer", "Classic", "CONSUMER", "share", "streams", "", "nonsense"):
            yield ask(f"type {kind!r}", TypesFilter=[kind])
        yield ask("two types", TypesFilter=["classic", "consumer"])
        yield ask("type and state", TypesFilter=["classic"], StatesFilter=["Stable"])
        yield ask("type and other state", TypesFilter=["consumer"], StatesFilter=["Empty"])
    yield Step({"GroupsNames": [plain]}, api="DeleteGroups", version=1)
    yield Step(
        {"GroupId": waiting, "Members": [{"MemberId": learned(f"member {waiting}", "")}]},
        api="LeaveGroup",
        version=LEAVE,
    )
    yield ask("one deleted")


@scenario("DeleteGroups")
def delete_groups(draw: Draw, version: int) -> Iterator[Step]:
    def ask(*groups: str, note: str = "") -> Step:
        return Step({"GroupsNames": list(groups)}, note=note)

    never, plain = draw.fresh("group"), draw.fresh("group")
    yield ask(never, note="never seen")
    yield ask("", note="no group id")
    yield ask(note="nobody")
    yield prepared(plain, (DATA, [part(0, 1)]), (EMPTY, [part(1, 1)]))
    group, slot, me, _steps = stable(draw)
    yield join(group, slot)
    yield ask(group, note="joined")
    yield sync(group, slot)
    yield ask(group, plain, never, "", note="several")
    yield committed(plain, "deleted")
    yield ask(plain, note="again")
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield ask(group, group, note="repeated")
    yield ask(group, note="after that")
    yield Step(joining(group, me), api="JoinGroup", version=JOIN, note="a member of a deleted group")
    yield Step(syncing(group, me), api="SyncGroup", version=SYNC, note="a member of a deleted group")
    again = draw.fresh("group")
    slot = f"member {again}"
    yield Step(joining(again), api="JoinGroup", version=4, learn=as_member(slot), note="for an id")
    yield prepared(again, (DATA, [part(0, 1)]))
    yield ask(again, note="somebody has an id only")
    yield describe(again, note="somebody had an id only")
    yield Step(
        joining(again, learned(slot, "")), api="JoinGroup", version=4, note="the id of a deleted group"
    )


@scenario("DeleteGroups")
def delete_consumer_groups(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh("group")
    yield beat(entering(name, "one", SubscribedTopicNames=[DATA]))
    yield Step({"GroupsNames": [name]}, note="has a member")
    yield beat({"GroupId": name, "MemberId": "one", "MemberEpoch": -1})
    yield Step({"GroupsNames": [name]}, note="empty")
    yield Step({"GroupsNames": [name]}, note="again")


@scenario("IncrementalAlterConfigs")
def group_settings(draw: Draw, version: int) -> Iterator[Step]:
    """Settings of a group: what may be set, and what it then is."""
    name = draw.fresh("group")

    def change(note: str, *changes: tuple[str, int, str | None], group: str = name) -> Step:
        configs = [{"Name": key, "ConfigOperation": kind, "Value": value} for key, kind, value in changes]
        resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": group, "Configs": configs}
        return Step({"Resources": [resource]}, note=note)

    def show(note: str, group: str = name, keys: list[str] | None = None) -> Step:
        resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": group, "ConfigurationKeys": keys}
        body = {"Resources": [resource], "IncludeSynonyms": True}
        return Step(body, api="DescribeConfigs", version=4, note=note)

    yield show("nothing set", keys=WANTED)
    yield change(
        "valid", ("consumer.session.timeout.ms", 0, "50000"), ("consumer.heartbeat.interval.ms", 0, "6000")
    )
    yield show("set", keys=WANTED)
    for value in ("44999", "60001", "0", "-1", "text", "", None, "5.5"):
        yield change(f"session {value}", ("consumer.session.timeout.ms", 0, value))
    for value in ("4999", "15001", "15000"):
        yield change(f"heartbeat {value}", ("consumer.heartbeat.interval.ms", 0, value))
    yield change("session below heartbeat", ("consumer.session.timeout.ms", 0, "5000"))
    yield change("unknown", ("nonsense", 0, "1"))
    yield change("a topic's", ("retention.ms", 0, "1"))
    yield change("append", ("consumer.session.timeout.ms", 2, "50000"))
    yield change("no group", ("consumer.session.timeout.ms", 0, "50000"), group="")
    yield change("taken back", ("consumer.session.timeout.ms", 1, None))
    yield show("taken back", keys=WANTED)
    yield change("taken back twice", ("consumer.session.timeout.ms", 1, None))
    yield show("no group id", group="", keys=WANTED)


WANTED = ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]
