"""OffsetCommit, OffsetFetch, OffsetDelete: at every version, for groups of every kind."""

from collections.abc import Iterator, Sequence
from typing import Any

from conformance.differential.scenario import UNKNOWN_ID, Draw, Ref, Step, scenario, topic_id
from conformance.differential.scenarios.base import DATA, EMPTY, SMALL
from conformance.differential.scenarios.groups import COMMIT, FETCH, LEAVE, joining, stable, sync
from conformance.differential.scenarios.topics import create, new_topic

OFFSETS_TOPIC = "__consumer_offsets"
NO_ID = bytes(16)
METADATA_MAX = 4096
IN_ZOOKEEPER = 0
"""The version that kept offsets in ZooKeeper, without which Kafka refuses it. One request shows that."""
KAFKA_4_SINCE = 2
"""Versions before are asked of Kafka 3.9."""


def place(version: int, topic: Any, ids_from: int = 10) -> dict[str, Any]:
    """A topic in a request: its name, or from this version on its id."""
    if version < ids_from:
        return {"Name": topic}
    return {"TopicId": topic_id(topic) if isinstance(topic, str) else topic}


def part(index: int, offset: int, metadata: str | None = "", **more: Any) -> dict[str, Any]:
    return {"PartitionIndex": index, "CommittedOffset": offset, "CommittedMetadata": metadata, **more}


def committing(
    version: int, group: str, topics: Sequence[tuple[Any, list[dict[str, Any]]]], **more: Any
) -> Any:
    named = [place(version, topic) | {"Partitions": partitions} for topic, partitions in topics]
    return {"GroupId": group, "Topics": named, **more}


def fetching(version: int, group: str, topics: Sequence[tuple[Any, list[int]]] | None, **more: Any) -> Any:
    named = None
    if topics is not None:
        named = [place(version, topic) | {"PartitionIndexes": list(indexes)} for topic, indexes in topics]
    stable = {"RequireStable": more.pop("stable")} if "stable" in more else {}
    if version < 8:
        return {"GroupId": group, "Topics": named, **stable}
    return {"Groups": [{"GroupId": group, "Topics": named, **more}], **stable}


def committed(group: str, note: str = "") -> Step:
    return Step(fetching(FETCH, group, None), api="OffsetFetch", version=FETCH, note=f"{note}, read back")


def prepared(group: str, *topics: tuple[str, list[dict[str, Any]]]) -> Step:
    return Step(committing(COMMIT, group, topics), api="OffsetCommit", version=COMMIT)


@scenario("OffsetCommit")
def commit_plain(draw: Draw, version: int) -> Iterator[Step]:
    """By nobody's member, as tools and consumers that assign themselves do."""
    group = draw.fresh("group")
    if version == IN_ZOOKEEPER:
        yield Step(committing(version, group, [(DATA, [part(0, 7, "here"), part(1, 0)])]))
        return
    epoch = {"CommittedLeaderEpoch": 0} if version >= 6 else {}
    first = [part(0, 7, "here", **epoch), part(1, 0), part(2, 2**40, None)]
    yield Step(committing(version, group, [(DATA, first)]))
    yield committed(group, "first")
    yield Step(
        committing(version, group, [(DATA, [part(0, 3, "back")]), (EMPTY, [part(1, 9)])]), note="lower"
    )
    yield committed(group, "lower")
    for offset in (-1, -2, 2**63 - 1):
        yield Step(committing(version, group, [(DATA, [part(0, offset)])]), note=f"offset {offset}")
        yield committed(group, f"offset {offset}")
    for size in (METADATA_MAX, METADATA_MAX + 1):
        mixed = [part(0, 1, "m" * size), part(1, 1, "small")]
        yield Step(committing(version, group, [(DATA, mixed)]), note=f"{size} bytes of metadata")
    yield committed(group, "metadata")
    wide = [part(0, 1, "\u00e4" * (METADATA_MAX // 2 + 1))]
    yield Step(committing(version, group, [(DATA, wide)]), note="few characters, many bytes")
    if version >= 6:
        for number in (-1, -2, 5, 1000):
            inner = [part(0, 50 + number, CommittedLeaderEpoch=number)]
            yield Step(committing(version, group, [(DATA, inner)]), note=f"leader epoch {number}")
            yield committed(group, f"leader epoch {number}")
    if 2 <= version <= 4:
        for retention in (0, -1, 1, 3_600_000):
            body = committing(version, group, [(DATA, [part(0, 4)])], RetentionTimeMs=retention)
            yield Step(body, note=f"retention {retention}")


@scenario("OffsetCommit")
def commit_too_much(draw: Draw, version: int) -> Iterator[Step]:
    """More than one batch of the offsets topic holds, though each offset is small. Kafka 3.9, which is asked for
    versions that Kafka 4 dropped, keeps the last offset of a partition that is named often."""
    if version < KAFKA_4_SINCE:
        return
    group = draw.fresh("group")
    yield Step(committing(version, group, [(DATA, [part(0, 1)])]))
    many = [part(0, offset, "x" * 4_000) for offset in range(300)]
    yield Step(committing(version, group, [(DATA, many)]), note="too much")
    yield committed(group, "too much")
    yield Step(committing(version, group, [(DATA, many[:100])]), note="less")
    yield committed(group, "less")


@scenario("OffsetCommit")
def commit_wrong(draw: Draw, version: int) -> Iterator[Step]:
    if version == IN_ZOOKEEPER:
        return
    group = draw.fresh("group")
    some = [part(0, 1)]
    yield Step(committing(version, "", [(DATA, some)]), note="no group id")
    yield committed("", "no group id")
    yield Step(committing(version, group, []), note="nothing")
    yield Step(committing(version, group, [(DATA, [])]), note="no partitions")
    odd = [part(0, 1), part(77, 1), part(-1, 1)]
    yield Step(committing(version, group, [(DATA, odd), (SMALL, some)]), note="unknown partitions")
    yield committed(group, "unknown partitions")
    if version < 10:
        unknown: list[Any] = [draw.fresh("absent"), "bad name", ""]
    else:
        unknown = [UNKNOWN_ID, NO_ID]
    for topic in unknown:
        yield Step(
            committing(version, group, [(topic, some), (DATA, [part(1, 1)])]), note=f"unknown {topic!r}"
        )
    yield Step(committing(version, group, [(topic, some) for topic in unknown]), note="only unknown ones")
    yield Step(
        committing(version, group, [(DATA, some), (DATA, [part(0, 2), part(1, 2)])]), note="topic twice"
    )
    yield Step(committing(version, group, [(DATA, [part(0, 5), part(0, 6)])]), note="partition twice")
    yield committed(group, "twice")
    yield Step(committing(version, group, [(OFFSETS_TOPIC, some)]), note="an internal topic")
    for generation, member in ((0, ""), (1, ""), (1, "somebody"), (-1, "somebody"), (-2, "somebody")):
        never = draw.fresh("group")
        who = {"GenerationIdOrMemberEpoch": generation, "MemberId": member}
        body = committing(version, never, [(DATA, some)], **who)
        yield Step(body, note=f"generation {generation} of {member!r}, a group never seen")
        body = committing(version, group, [(DATA, some)], **who)
        yield Step(body, note=f"generation {generation} of {member!r}, an empty group")
        if version >= 7:
            body = committing(version, group, [(DATA, some)], GroupInstanceId="i", **who)
            yield Step(body, note=f"generation {generation} of {member!r}, an instance")


@scenario("OffsetCommit")
def commit_as_member(draw: Draw, version: int) -> Iterator[Step]:
    if version == IN_ZOOKEEPER:
        return
    group, slot, me, steps = stable(draw)
    yield from steps
    for generation in (1, 0, 2, -1):
        who: dict[str, Any] = {"GenerationIdOrMemberEpoch": generation, "MemberId": me}
        body = committing(version, group, [(DATA, [part(0, 10 + generation), part(99, 1)])], **who)
        yield Step(body, note=f"generation {generation}")
    for member in ("", "somebody"):
        who = {"GenerationIdOrMemberEpoch": 1, "MemberId": member}
        yield Step(committing(version, group, [(DATA, [part(0, 1)])], **who), note=f"member {member!r}")
    yield Step(committing(version, group, [(DATA, [part(0, 1)])]), note="nobody, while there are members")
    if version >= 7:
        who = {"GenerationIdOrMemberEpoch": 1, "MemberId": me, "GroupInstanceId": "unknown"}
        yield Step(committing(version, group, [(DATA, [part(0, 1)])], **who), note="an unknown instance")
    yield committed(group)
    yield Step(joining(group, me), api="JoinGroup", version=3)
    who = {"GenerationIdOrMemberEpoch": 2, "MemberId": me}
    yield Step(committing(version, group, [(DATA, [part(0, 20)])], **who), note="before it synced")
    yield sync(group, slot, 2)
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield Step(committing(version, group, [(DATA, [part(0, 21)])], **who), note="after it left")
    yield Step(committing(version, group, [(DATA, [part(0, 22)])]), note="nobody, after it left")
    yield committed(group, "at last")


@scenario("OffsetFetch")
def fetch_offsets(draw: Draw, version: int) -> Iterator[Step]:
    if version == IN_ZOOKEEPER:
        return
    group = draw.fresh("group")
    held = [part(0, 7, "here", CommittedLeaderEpoch=0), part(1, 0, None), part(2, 2**40, "")]
    yield prepared(group, (DATA, held), (EMPTY, [part(1, 3, "x" * 4000)]))
    yield Step(fetching(version, group, [(DATA, [0, 1, 2]), (EMPTY, [0, 1])]))
    yield Step(fetching(version, group, [(DATA, [2])]), note="one")
    yield Step(fetching(version, group, [(DATA, [0, 55, -1])]), note="unknown partitions")
    yield Step(fetching(version, group, []), note="nothing")
    yield Step(fetching(version, group, [(DATA, [])]), note="no partitions")
    yield Step(fetching(version, group, [(DATA, [0, 0])]), note="partition twice")
    yield Step(fetching(version, group, [(DATA, [0]), (DATA, [1])]), note="topic twice")
    if version >= 2:
        yield Step(fetching(version, group, None), note="all")
    if version >= 7:
        yield Step(fetching(version, group, None, stable=True), note="all, stable")
        yield Step(fetching(version, group, [(DATA, [0, 1, 9])], stable=True), note="some, stable")
    unknown: list[Any] = [draw.fresh("absent"), "bad name", ""] if version < 10 else [UNKNOWN_ID, NO_ID]
    for topic in unknown:
        yield Step(fetching(version, group, [(topic, [0, 1]), (DATA, [0])]), note=f"unknown {topic!r}")
    yield Step(fetching(version, group, [(topic, [0]) for topic in unknown]), note="only unknown ones")


@scenario("OffsetFetch")
def fetch_never_seen(draw: Draw, version: int) -> Iterator[Step]:
    never = draw.fresh("group")
    yield Step(fetching(version, never, [(DATA, [0, 1, 2, 55]), (EMPTY, [0])]))
    yield Step(fetching(version, "", [(DATA, [0])]), note="no group id")
    if version >= 2:
        yield Step(fetching(version, never, None), note="all")
        yield Step(fetching(version, "", None), note="all, no group id")
    if version >= 7:
        yield Step(fetching(version, never, [(DATA, [0])], stable=True), note="stable")
    if version >= 9:
        for member, epoch in (("somebody", 1), ("somebody", -1), (None, 4), ("", 0), ("", -1)):
            who = {"MemberId": member, "MemberEpoch": epoch}
            yield Step(fetching(version, never, [(DATA, [0])], **who), note=f"{member!r} at {epoch}")


@scenario("OffsetFetch")
def fetch_many_groups(draw: Draw, version: int) -> Iterator[Step]:
    if version < 8:
        return
    one, two, never = draw.fresh("group"), draw.fresh("group"), draw.fresh("group")
    yield prepared(one, (DATA, [part(0, 1, "one")]))
    yield prepared(two, (DATA, [part(0, 2, "two"), part(1, 3)]), (EMPTY, [part(0, 4)]))
    some = [place(version, DATA) | {"PartitionIndexes": [0, 1]}]
    groups = [{"GroupId": name, "Topics": some} for name in (one, two, never)]
    yield Step({"Groups": groups})
    yield Step(
        {"Groups": [{"GroupId": name, "Topics": None} for name in (one, two, never)]}, note="all topics"
    )
    mixed = [
        {"GroupId": one, "Topics": None},
        {"GroupId": two, "Topics": some},
        {"GroupId": never, "Topics": []},
    ]
    yield Step({"Groups": mixed, "RequireStable": True}, note="mixed")
    yield Step({"Groups": []}, note="no groups")
    yield Step({"Groups": [groups[0], groups[0]]}, note="the same twice")
    yield Step({"Groups": [groups[0], {"GroupId": "", "Topics": some}]}, note="one without id")


@scenario("OffsetFetch")
def fetch_as_member(draw: Draw, version: int) -> Iterator[Step]:
    """Members of classic groups may ask whatever they say of themselves; only the new protocol checks it."""
    if version == IN_ZOOKEEPER:
        return
    group, _, me, steps = stable(draw)
    yield from steps
    yield prepared(group, (DATA, [part(0, 1)]))
    yield Step(fetching(version, group, [(DATA, [0])]), note="nobody's")
    if version >= 9:
        asked: list[tuple[str | Ref | None, int]] = [(me, 1), (me, 7), ("somebody", 1), (None, 1), ("", -1)]
        for member, epoch in asked:
            who = {"MemberId": member, "MemberEpoch": epoch}
            yield Step(fetching(version, group, [(DATA, [0])], **who), note=f"{member!r} at {epoch}")


def forgetting(group: str, *topics: tuple[str, list[int]], note: str = "") -> Step:
    named = [
        {"Name": topic, "Partitions": [{"PartitionIndex": index} for index in indexes]}
        for topic, indexes in topics
    ]
    return Step({"GroupId": group, "Topics": named}, note=note)


@scenario("OffsetDelete")
def delete_offsets(draw: Draw, version: int) -> Iterator[Step]:
    group, never = draw.fresh("group"), draw.fresh("group")
    yield forgetting(never, (DATA, [0]), note="a group never seen")
    yield forgetting("", (DATA, [0]), note="no group id")
    yield forgetting(never, note="a group never seen, nothing")
    yield prepared(group, (DATA, [part(0, 1), part(1, 2), part(2, 3)]), (EMPTY, [part(0, 4)]))
    yield forgetting(group, (DATA, [0, 77, -1]), (draw.fresh("absent"), [0]), note="some unknown")
    yield committed(group, "some unknown")
    yield forgetting(group, (DATA, [0]), note="again")
    yield forgetting(group, (DATA, [1, 1]), note="repeated")
    yield forgetting(group, note="nothing")
    yield forgetting(group, (DATA, []), note="no partitions")
    yield forgetting(group, (DATA, [2]), (EMPTY, [0]), note="the rest")
    yield committed(group, "the rest")
    yield forgetting(group, (DATA, [2]), note="after all is gone")
    group, _, me, steps = stable(draw)
    yield from steps
    body = committing(COMMIT, group, [(DATA, [part(0, 1)]), (EMPTY, [part(0, 2)])])
    body |= {"GenerationIdOrMemberEpoch": 1, "MemberId": me}
    yield Step(body, api="OffsetCommit", version=COMMIT)
    yield forgetting(group, (DATA, [0]), (EMPTY, [0, 1]), note="one that a member subscribes to")
    yield committed(group, "subscribed")
    group, _, me, steps = stable(draw, ProtocolType="connect")
    yield from steps
    yield forgetting(group, (DATA, [0]), note="members that are not consumers")
    group, _, me, steps = stable(draw, Protocols=[{"Name": "range", "Metadata": b"junk"}])
    yield from steps
    yield forgetting(group, (DATA, [0]), note="a consumer whose subscription is junk")
    yield Step({"GroupId": group, "Members": [{"MemberId": me}]}, api="LeaveGroup", version=LEAVE)
    yield forgetting(group, (DATA, [0]), note="empty again")


@scenario("OffsetCommit")
def commit_to_deleted_topic(draw: Draw, version: int) -> Iterator[Step]:
    """Offsets go with their topic, and do not come back with another one of its name."""
    if version == IN_ZOOKEEPER:
        return
    group, name = draw.fresh("group"), draw.fresh()
    yield create(new_topic(name))
    yield Step(committing(version, group, [(name, [part(0, 5)]), (DATA, [part(0, 6)])]))
    yield Step({"TopicNames": [name], "TimeoutMs": 10_000}, api="DeleteTopics", version=4)
    yield create(new_topic(name))
    yield Step(fetching(FETCH, group, [(name, [0]), (DATA, [0])]), api="OffsetFetch", version=FETCH)
