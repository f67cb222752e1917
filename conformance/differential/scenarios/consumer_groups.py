"""The new protocol (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import UNKNOWN_ID, Draw, Step, learned, remember, scenario, topic_id
from conformance.differential.scenarios.base import DATA, EMPTY, SMALL
from conformance.differential.scenarios.group_offsets import committing, fetching, part, prepared
from conformance.differential.scenarios.groups import JOIN, LEAVE, beating, describe, joining, stable, syncing
from conformance.differential.scenarios.topics import create, new_topic

BEAT = 1
TIMEOUT_MS = 60_000
LEAVING, LEAVING_FOR_A_WHILE = -1, -2


def entering(group: str, member: str, **more: Any) -> dict[str, Any]:
    """The first heartbeat of a member: everything is said in it."""
    return {
        "GroupId": group,
        "MemberId": member,
        "MemberEpoch": 0,
        "RebalanceTimeoutMs": TIMEOUT_MS,
        "TopicPartitions": [],
        **more,
    }


def staying(group: str, member: Any, epoch: int, **more: Any) -> dict[str, Any]:
    return {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, **more}


def owns(topic: str, *partitions: int) -> dict[str, Any]:
    return {"TopicPartitions": [{"TopicId": topic_id(topic), "Partitions": list(partitions)}]}


def beat(body: dict[str, Any], note: str = "") -> Step:
    return Step(body, api="ConsumerGroupHeartbeat", version=BEAT, note=note)


def described(*groups: str, note: str = "") -> Step:
    return Step({"GroupIds": list(groups)}, api="ConsumerGroupDescribe", version=1, note=note)


def first_id(draw: Draw, version: int) -> str:
    """Version 0 leaves the member's id to the broker; later ones to the member."""
    return "" if version < 1 else draw.fresh("id")


@scenario("ConsumerGroupHeartbeat")
def consumer_alone(draw: Draw, version: int) -> Iterator[Step]:
    """One member: comes, owns, changes its mind, leaves."""
    group = draw.fresh("group")
    slot = f"member {group}"
    me = learned(slot, "")
    body = entering(group, first_id(draw, version), SubscribedTopicNames=[DATA])
    yield Step(body, learn=remember(MemberId=slot), note="enters")
    yield described(group, note="entered")
    yield Step(staying(group, me, 2), note="says nothing new")
    yield Step(staying(group, me, 2, **owns(DATA, 0, 1, 2)), note="owns all")
    yield described(group, note="owns all")
    yield Step(staying(group, me, 2, SubscribedTopicNames=[DATA, SMALL]), note="one topic more")
    yield described(group, note="one topic more")
    yield Step(staying(group, me, 3, SubscribedTopicNames=[SMALL]), note="one topic less")
    yield described(group, note="one topic less")
    yield Step(staying(group, me, 3), note="has not let go")
    yield Step(staying(group, me, 3, **owns(SMALL, 0)), note="has let go")
    yield described(group, note="has let go")
    yield Step(staying(group, me, 3), note="an epoch ago")
    yield Step(staying(group, me, 4, SubscribedTopicNames=[]), note="no topics")
    yield described(group, note="no topics")
    yield Step(staying(group, me, LEAVING), note="leaves")
    yield described(group, note="left")
    yield Step(staying(group, me, LEAVING), note="leaves again")
    yield Step(staying(group, me, 4), note="after it left")


@scenario("ConsumerGroupHeartbeat")
def consumer_too_large(draw: Draw, version: int) -> Iterator[Step]:
    """More names than one record of the offsets topic holds."""
    group = draw.fresh("group")
    slot = f"member {group}"
    me = learned(slot, "")
    many = [f"{number:06}{'n' * 200}" for number in range(10_000)]
    member = first_id(draw, version)
    yield Step(entering(group, member, SubscribedTopicNames=many), note="enters too large")
    yield described(group, note="entered too large")
    body = entering(group, member, SubscribedTopicNames=[DATA])
    yield Step(body, learn=remember(MemberId=slot), note="enters")
    yield Step(staying(group, me, 2, SubscribedTopicNames=many), note="too large")
    yield described(group, note="too large")
    yield Step(staying(group, me, 2), note="says nothing new")


@scenario("ConsumerGroupHeartbeat")
def consumer_wrong(draw: Draw, version: int) -> Iterator[Step]:
    def ask(note: str, **more: Any) -> Step:
        usual = entering(draw.fresh("group"), draw.fresh("id"), SubscribedTopicNames=[DATA])
        return Step(usual | more, note=note)

    yield ask("no group id", GroupId="")
    yield ask("blank group id", GroupId="  ")
    yield ask("no member id", MemberId="")
    yield ask("no rebalance time", RebalanceTimeoutMs=-1)
    yield ask("rebalance time 0", RebalanceTimeoutMs=0)
    yield ask("rebalance time -5", RebalanceTimeoutMs=-5)
    yield ask("no owned partitions", TopicPartitions=None)
    yield ask("owns something", **owns(DATA, 0))
    yield ask("no topics said", SubscribedTopicNames=None)
    yield ask("no topics", SubscribedTopicNames=[])
    yield ask("unknown topic", SubscribedTopicNames=[draw.fresh("absent")])
    yield ask("bad topic", SubscribedTopicNames=["bad name", ""])
    yield ask("topic twice", SubscribedTopicNames=[DATA, DATA])
    yield ask("unknown assignor", ServerAssignor="nonsense")
    yield ask("no assignor", ServerAssignor="")
    yield ask("assignor range", ServerAssignor="range")
    yield ask("assignor uniform", ServerAssignor="uniform")
    yield ask("empty instance", InstanceId="")
    yield ask("strange instance", InstanceId="bad name")
    yield ask("empty rack", RackId="")
    yield ask("rack", RackId="rack 1")
    for epoch in (-1, -2, -3, -100, 1, 5):
        yield ask(f"epoch {epoch}, a group never seen", MemberEpoch=epoch)
        yield ask(f"epoch {epoch}, an instance", MemberEpoch=epoch, InstanceId="instance")
    if version >= 1:
        for regex in ("", "base-.*", "(", "(?=x)", "[", "base-(data|empty)", "nothing.*"):
            yield ask(f"regex {regex!r}", SubscribedTopicNames=None, SubscribedTopicRegex=regex)
        yield ask("names and a regex", SubscribedTopicRegex="base-empty")
        yield ask("no names and a regex", SubscribedTopicNames=[], SubscribedTopicRegex="base-empty")


@scenario("ConsumerGroupHeartbeat")
def consumer_odd(draw: Draw, version: int) -> Iterator[Step]:
    """A member that is there says what it should not."""
    group = draw.fresh("group")
    slot = f"member {group}"
    me = learned(slot, "")
    body = entering(group, first_id(draw, version), SubscribedTopicNames=[DATA])
    yield Step(body, learn=remember(MemberId=slot), note="enters")

    def ask(note: str, **more: Any) -> Step:
        return Step(staying(group, me, 2) | more, note=note)

    for epoch in (1, 3, 100, -3):
        yield ask(f"epoch {epoch}", MemberEpoch=epoch)
    yield ask("epoch 1, owning what it has", MemberEpoch=1, **owns(DATA, 0, 1, 2))
    yield ask("epoch 1, owning more", MemberEpoch=1, **owns(DATA, 0, 1, 2, 3))
    yield ask("owns what it was not given", **owns(EMPTY, 0))
    yield ask("owns a topic that is none", TopicPartitions=[{"TopicId": UNKNOWN_ID, "Partitions": [0]}])
    yield ask("owns nothing", TopicPartitions=[])
    yield ask("unknown member", MemberId="somebody")
    yield ask("no member id", MemberId="")
    yield ask("unknown assignor", ServerAssignor="nonsense")
    yield ask("other assignor", ServerAssignor="range")
    yield ask("an instance", InstanceId="instance")
    yield ask("an empty instance", InstanceId="")
    yield ask("an empty rack", RackId="")
    yield ask("a rebalance time", RebalanceTimeoutMs=5)
    yield described(group)
    yield Step(entering(group, me, SubscribedTopicNames=[DATA]), note="enters again")  # type: ignore[arg-type]
    yield described(group, note="entered again")
    yield ask("leaves for a while, without an instance", MemberEpoch=LEAVING_FOR_A_WHILE)
    yield described(group, note="left for a while")


@scenario("ConsumerGroupHeartbeat")
def consumer_two(draw: Draw, version: int) -> Iterator[Step]:
    """Two members share three partitions: one gives up before the other gets."""
    group = draw.fresh("group")
    one, two = f"member one {group}", f"member two {group}"
    me, you = learned(one, ""), learned(two, "")
    body = entering(group, first_id(draw, version), SubscribedTopicNames=[SMALL])
    yield Step(body, learn=remember(MemberId=one), note="one enters")
    yield Step(staying(group, me, 2, **owns(SMALL, 0)), note="one owns all")
    body = entering(group, first_id(draw, version), SubscribedTopicNames=[DATA])
    yield Step(body, learn=remember(MemberId=two), note="two enters, another topic")
    yield described(group, note="two topics")
    yield Step(staying(group, you, 3, **owns(DATA, 0, 1, 2)), note="two owns all of it")
    yield Step(staying(group, me, 2), note="one hears of the epoch")
    yield described(group, note="both at the epoch")
    yield Step(staying(group, me, LEAVING), note="one leaves")
    yield described(group, note="one left")
    yield Step(staying(group, you, 3), note="two hears of it")
    yield described(group, note="two alone")


@scenario("ConsumerGroupHeartbeat")
def consumer_static(draw: Draw, version: int) -> Iterator[Step]:
    group = draw.fresh("group")
    one, two = f"member one {group}", f"member two {group}"
    me, you = learned(one, ""), learned(two, "")
    body = entering(group, first_id(draw, version), SubscribedTopicNames=[DATA], InstanceId="instance")
    yield Step(body, learn=remember(MemberId=one), note="enters")
    yield Step(staying(group, me, 2, InstanceId="instance", **owns(DATA, 0, 1, 2)), note="owns")
    yield described(group, note="owns")
    other = entering(group, first_id(draw, version), SubscribedTopicNames=[DATA], InstanceId="instance")
    yield Step(other, note="another process of the same instance")
    again = entering(group, "same", SubscribedTopicNames=[DATA], InstanceId="other")
    yield Step(again, note="another instance")
    yield Step(again, note="the same process enters again")
    yield Step(staying(group, "same", LEAVING, InstanceId="other"), note="another instance leaves")
    yield Step(staying(group, "somebody", 2, InstanceId="instance"), note="an unknown id of the instance")
    yield Step(staying(group, me, 2, InstanceId="unknown"), note="an unknown instance of the id")
    yield Step(staying(group, me, 2), note="without its instance")
    yield Step(staying(group, me, LEAVING_FOR_A_WHILE, InstanceId="instance"), note="leaves for a while")
    yield described(group, note="away")
    yield Step(staying(group, me, 2, InstanceId="instance"), note="speaks though it is away")
    yield Step(other, learn=remember(MemberId=two), note="the next process")
    yield described(group, note="back")
    yield Step(staying(group, me, 2, InstanceId="instance"), note="the process before")
    yield Step(staying(group, you, 2, InstanceId="instance"), note="the process now")
    yield Step(staying(group, you, LEAVING, InstanceId="instance"), note="leaves for good")
    yield described(group, note="left")


@scenario("ConsumerGroupHeartbeat")
def consumer_offsets(draw: Draw, version: int) -> Iterator[Step]:
    """Members of the new protocol commit and fetch at their epoch."""
    group = draw.fresh("group")
    slot = f"member {group}"
    me = learned(slot, "")
    body = entering(group, first_id(draw, version), SubscribedTopicNames=[DATA])
    yield Step(body, learn=remember(MemberId=slot), note="enters")
    for at in (9, 10, 8):
        for epoch, member in ((2, me), (1, me), (3, me), (2, "somebody"), (-1, me), (-1, ""), (2, "")):
            who = {"GenerationIdOrMemberEpoch": epoch, "MemberId": member}
            asked = committing(at, group, [(DATA, [part(0, 5 + at)])], **who)
            yield Step(asked, api="OffsetCommit", version=at, note=f"epoch {epoch}, {member!r}"[:18])
            if at < 9:
                continue
            who = {"MemberEpoch": epoch, "MemberId": member}
            asked = fetching(at, group, [(DATA, [0, 1, 66])], **who)
            yield Step(asked, api="OffsetFetch", version=at, note=f"epoch {epoch}, {member!r}"[:18])
    asked = fetching(9, group, [(DATA, [0])], MemberId=None, MemberEpoch=-1)
    yield Step(asked, api="OffsetFetch", version=9, note="nobody's")
    partitions = [{"PartitionIndex": 0}]
    yield Step(
        {
            "GroupId": group,
            "Topics": [{"Name": DATA, "Partitions": partitions}, {"Name": EMPTY, "Partitions": partitions}],
        },
        api="OffsetDelete",
        version=0,
    )
    yield Step(staying(group, me, LEAVING))
    yield Step(committing(9, group, [(DATA, [part(1, 5)])]), api="OffsetCommit", version=9, note="an admin")
    yield Step(fetching(9, group, None), api="OffsetFetch", version=9, note="all")


@scenario("ConsumerGroupHeartbeat")
def consumer_beside_classic(draw: Draw, version: int) -> Iterator[Step]:
    """One protocol meets a group of the other."""
    group, _, me, steps = stable(draw)
    yield from steps
    yield Step(
        entering(group, first_id(draw, version), SubscribedTopicNames=[DATA]),
        note="a classic group of junk shares",
    )
    yield describe(group)
    yield Step(staying(group, "somebody", 3), note="an unknown member of a classic group")
    yield described(group, note="a classic group")
    group, _, me, steps = stable(draw)
    yield from steps
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield Step(staying(group, "somebody", 3), note="an unknown member of an empty classic group")
    yield Step(
        entering(group, "one" if version else "", SubscribedTopicNames=[DATA]), note="an empty classic group"
    )
    yield described(group, note="which is of the new protocol now")
    plain = draw.fresh("group")
    yield prepared(plain, (DATA, [part(0, 1)]))
    yield Step(
        entering(plain, "one" if version else "", SubscribedTopicNames=[DATA]),
        note="a group that is offsets only",
    )
    yield described(plain, note="offsets only")
    new = draw.fresh("group")
    slot = f"member {new}"
    yield Step(
        entering(new, first_id(draw, version), SubscribedTopicNames=[DATA]), learn=remember(MemberId=slot)
    )
    yield describe(new, note="of the new protocol")
    yield Step(beating(new, learned(slot, "")), api="Heartbeat", version=3, note="a classic heartbeat")
    yield Step(syncing(new, learned(slot, "")), api="SyncGroup", version=3, note="a classic sync")
    yield Step(joining(new, ProtocolType="connect"), api="JoinGroup", version=JOIN, note="a connect worker")
    body = {"GroupId": new, "Members": [{"MemberId": learned(slot, "")}]}
    yield Step(body, api="LeaveGroup", version=LEAVE, note="a classic leave")
    yield described(new, note="after the classic leave")


@scenario("ConsumerGroupHeartbeat")
def consumer_topics_change(draw: Draw, version: int) -> Iterator[Step]:
    """Topics grow, come and go under a member."""
    group, name, later = draw.fresh("group"), draw.fresh(), draw.fresh()
    slot = f"member {group}"
    me = learned(slot, "")
    yield create(new_topic(name))
    body = entering(group, first_id(draw, version), SubscribedTopicNames=[name, later])
    yield Step(body, learn=remember(MemberId=slot), note="enters")
    wanted = {"Topics": [{"Name": name, "Count": 3, "Assignments": None}], "TimeoutMs": 10_000}
    yield Step(wanted, api="CreatePartitions", version=1)
    yield Step(staying(group, me, 2, **owns(name, 0)), note="after it grew")
    yield create(new_topic(later))
    yield Step(staying(group, me, 3, **owns(name, 0, 1, 2)), note="after the other came")
    yield described(group, note="both")
    yield Step({"TopicNames": [later], "TimeoutMs": 10_000}, api="DeleteTopics", version=4)
    yield Step(staying(group, me, 4), note="after it went")
    yield Step(staying(group, me, 4, **owns(name, 0, 1, 2)), note="and was let go")
    yield described(group, note="one")


@scenario("ConsumerGroupDescribe")
def describe_consumers(draw: Draw, version: int) -> Iterator[Step]:
    def ask(*groups: str, note: str = "", **more: Any) -> Step:
        return Step({"GroupIds": list(groups), **more}, note=note)

    never, group, plain = draw.fresh("group"), draw.fresh("group"), draw.fresh("group")
    yield ask(never, note="never seen")
    yield ask("", note="no group id")
    yield ask(note="nobody")
    more = {"RackId": "rack 1", "InstanceId": "instance", "ServerAssignor": "range"}
    yield beat(entering(group, "one", SubscribedTopicNames=[DATA, draw.fresh("absent")], **more))
    yield ask(group)
    yield ask(group, IncludeAuthorizedOperations=True, note="operations")
    yield prepared(plain, (DATA, [part(0, 1)]))
    classic, _, _, steps = stable(draw)
    yield from steps
    yield ask(group, never, plain, classic, "", IncludeAuthorizedOperations=True, note="several")
    yield ask(group, group, note="repeated")
    regex = draw.fresh("group")
    yield beat(entering(regex, "one", SubscribedTopicRegex="base-(data|small)"), note="by regex")
    yield ask(regex, note="by regex")
