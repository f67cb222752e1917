"""The group APIs through `handle`, at each of their versions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from struct import Struct

import pytest

from penstock.broker.groups.requests import client_of
from penstock.broker.handlers import list_groups
from penstock.broker.shards.live import LiveShard
from penstock.broker.shards.loading import load
from penstock.groups import describe
from penstock.groups.classic.embedded import write_assignment
from penstock.groups.classic.group import ClassicGroup, ClassicMember
from penstock.groups.shard import GroupShard
from penstock.metadata.commands import DeleteTopic, RegisterBroker
from penstock.metadata.image import OFFSETS_TOPIC, Listener
from penstock.server.framed import FramedRequest
from penstock.storage.ledger.ledger import Ledger, Partition
from penstock.wire.api.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.api.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.api.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.api.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from penstock.wire.api.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from penstock.wire.api.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from penstock.wire.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.wire.api.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Session
from penstock.wire.texts import STRING_BYTES_MAX
from tests.broker.rig import Rig
from tests.groups.transcript import subscription

Offsets = dict[tuple[str, int], int]
UNKNOWN_ID = b"?" * 16


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(
        tmp_path / "store", group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=5
    )
    await made.topic("t", 3)
    yield made
    await made.close()


async def find(rig: Rig, group: str = "g", version: int = 4) -> None:
    """As every client does first."""
    request = (
        FindCoordinatorRequest(key=group) if version < 4 else FindCoordinatorRequest(coordinator_keys=[group])
    )
    await rig.ask(request, FindCoordinatorResponse, version)


async def join(rig: Rig, version: int, member_id: str = "", group: str = "g") -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000 if version else -1,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    )
    return await rig.ask(request, JoinGroupResponse, version)


async def commit(
    rig: Rig, version: int, offsets: Offsets, *, generation: int = -1, member_id: str = "", group: str = "g"
) -> dict[tuple[str, int], ErrorCode]:
    topics = []
    for name in dict.fromkeys(name for name, _ in offsets):
        known = rig.broker.image.topics.get(name)
        topics.append(
            OffsetCommitRequestTopic(
                name=name if version < 10 else "",
                topic_id=bytes(16) if version < 10 else UNKNOWN_ID if known is None else known.id,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=p, committed_offset=offset)
                    for (n, p), offset in offsets.items()
                    if n == name
                ],
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation if version else -1,
        member_id=member_id if version else "",
        topics=topics,
    )
    answer = await rig.ask(request, OffsetCommitResponse, version)
    names = list(dict.fromkeys(name for name, _ in offsets))
    if version < 10:
        assert [topic.name for topic in answer.topics] == names
    return {
        (name, p.partition_index): ErrorCode(p.error_code)
        for name, topic in zip(names, answer.topics, strict=True)
        for p in topic.partitions
    }


async def fetch(
    rig: Rig, version: int, asked: dict[str, list[int]] | None, group: str = "g"
) -> tuple[ErrorCode, dict[tuple[str, int], tuple[int, ErrorCode]]]:
    """The group's code, and offset and code of each partition."""
    if version < 8:
        topics = None
        if asked is not None:
            topics = [OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in asked.items()]
        request = OffsetFetchRequest(group_id=group, topics=topics)
        answer = await rig.ask(request, OffsetFetchResponse, version)
        return ErrorCode(answer.error_code), {
            (t.name, p.partition_index): (p.committed_offset, ErrorCode(p.error_code))
            for t in answer.topics
            for p in t.partitions
        }
    known = rig.broker.image.topics
    wanted = None
    if asked is not None:
        wanted = [
            OffsetFetchRequestTopics(
                name=n if version < 10 else "",
                topic_id=known[n].id
                if version >= 10 and n in known
                else UNKNOWN_ID
                if version >= 10
                else bytes(16),
                partition_indexes=p,
            )
            for n, p in asked.items()
        ]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])
    answer = await rig.ask(request, OffsetFetchResponse, version)
    (found,) = answer.groups
    names = {topic.id: name for name, topic in known.items()} | {UNKNOWN_ID: "nowhere"}
    return ErrorCode(found.error_code), {
        (t.name if version < 10 else names[t.topic_id], p.partition_index): (
            p.committed_offset,
            ErrorCode(p.error_code),
        )
        for t in found.topics
        for p in t.partitions
    }


@pytest.mark.parametrize("version", range(11))
async def test_offsets_of_a_group_never_seen(rig: Rig, version: int) -> None:
    await find(rig)
    code, found = await fetch(rig, version, {"t": [0, 2, 1]}, "never")
    assert code is ErrorCode.NONE
    assert found == {("t", p): (-1, ErrorCode.NONE) for p in (0, 2, 1)}
    if version >= 2:
        assert await fetch(rig, version, None, "never") == (ErrorCode.NONE, {})


@pytest.mark.parametrize("version", range(11))
async def test_every_partition_is_answered_by_a_broker_that_does_not_coordinate(
    rig: Rig, version: int
) -> None:
    code, found = await fetch(rig, version, {"t": [0, 1], "nowhere": [7]})
    assert found.keys() == {("t", 0), ("t", 1), ("nowhere", 7)}
    assert {code for _, code in found.values()} == {ErrorCode.NOT_COORDINATOR}
    if version >= 2:
        assert code is ErrorCode.NOT_COORDINATOR
    codes = await commit(rig, version, {("t", 0): 1, ("t", 1): 2})
    assert set(codes.values()) == {ErrorCode.NOT_COORDINATOR}


@pytest.mark.parametrize("version", range(11))
async def test_commit_and_fetch(rig: Rig, version: int) -> None:
    await find(rig)
    asked: Offsets = {("t", 0): 5, ("nowhere", 0): 1, ("t", 9): 1, ("t", 2): 7}
    codes = await commit(rig, version, asked)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {
        ("t", 0): ErrorCode.NONE,
        ("nowhere", 0): unknown,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", 2): ErrorCode.NONE,
    }
    code, found = await fetch(rig, version, {"t": [0, 1, 2]})
    assert code is ErrorCode.NONE
    assert {key: offset for key, (offset, _) in found.items()} == {("t", 0): 5, ("t", 1): -1, ("t", 2): 7}
    if version >= 2:
        _, everything = await fetch(rig, version, None)
        assert everything == {("t", 0): (5, ErrorCode.NONE), ("t", 2): (7, ErrorCode.NONE)}
    if version >= 10:
        _, by_id = await fetch(rig, version, {"nowhere": [3]})
        assert by_id == {("nowhere", 3): (-1, ErrorCode.UNKNOWN_TOPIC_ID)}


async def test_many_groups_are_fetched_at_once(rig: Rig) -> None:
    await find(rig)
    for n in range(6):
        await commit(rig, 9, {("t", 0): n}, group=f"g{n}")
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=f"g{n}", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
            )
            for n in range(7)
        ]
    )
    answer = await rig.ask(request, OffsetFetchResponse, 9)
    assert [(g.group_id, g.topics[0].partitions[0].committed_offset) for g in answer.groups] == [
        *((f"g{n}", n) for n in range(6)),
        ("g6", -1),
    ]


def moved_while_looking_for(rig: Rig, other: str, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While `other` is looked for, the partition of `group` goes to another broker."""
    groups = rig.broker.services.groups
    found = groups.found

    async def slowly(key: str) -> LiveShard[GroupShard] | ErrorCode:
        if key == other:
            live = await found(group)
            assert isinstance(live, LiveShard)
            live.partition.closed = True
            live.close()
        return await found(key)

    monkeypatch.setattr(groups, "found", slowly)
    monkeypatch.setattr(groups, "shard", lambda _key: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


async def test_a_group_that_moves_while_another_is_looked_for_is_not_fetched_from_its_old_coordinator(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await find(rig)
    for name, offset in (("g1", 1), ("g2", 2)):
        await commit(rig, 9, {("t", 0): offset}, group=name)
    moved_while_looking_for(rig, "g2", "g1", monkeypatch)
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=name, topics=topics) for name in ("g1", "g2")]
    )
    answer = await rig.ask(request, OffsetFetchResponse, 9)
    told = {
        group.group_id: (group.error_code, group.topics[0].partitions[0].committed_offset)
        for group in answer.groups
    }
    assert told == {"g1": (ErrorCode.NOT_COORDINATOR, -1), "g2": (ErrorCode.NONE, 2)}


async def test_a_group_that_moves_while_another_is_looked_for_is_not_deleted_and_that_is_said(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await find(rig)
    for name in ("g1", "g2"):
        await commit(rig, 9, {("t", 0): 1}, group=name)
    moved_while_looking_for(rig, "g2", "g1", monkeypatch)
    async with asyncio.timeout(60):
        answer = await rig.ask(DeleteGroupsRequest(groups_names=["g1", "g2"]), DeleteGroupsResponse, 2)
    told = {one.group_id: one.error_code for one in answer.results}
    assert told == {"g1": ErrorCode.NOT_COORDINATOR, "g2": ErrorCode.NONE}


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_names_a_broker_of_the_image(rig: Rig, version: int) -> None:
    assert OFFSETS_TOPIC not in rig.broker.image.topics
    if version < 4:
        one = await rig.ask(FindCoordinatorRequest(key="g"), FindCoordinatorResponse, version)
        assert (one.error_code, one.node_id, one.host, one.port) == (0, 1, "127.0.0.1", 9092)
    else:
        request = FindCoordinatorRequest(coordinator_keys=["g", "h"])
        many = await rig.ask(request, FindCoordinatorResponse, version)
        assert [(c.key, c.error_code, c.node_id, c.port) for c in many.coordinators] == [
            ("g", 0, 1, 9092),
            ("h", 0, 1, 9092),
        ]
    topic = rig.broker.image.topics[OFFSETS_TOPIC]
    assert len(topic.partitions) == 5
    # It is served: the first request after it is not sent away.
    _, found = await fetch(rig, 5, {"t": [0]})
    assert found == {("t", 0): (-1, ErrorCode.NONE)}


@pytest.mark.parametrize("version", [1, 3, 4, 6])
@pytest.mark.parametrize("key_type", [1, 2, 77])
async def test_find_coordinator_of_what_is_not_coordinated_here(
    rig: Rig, version: int, key_type: int
) -> None:
    transactional = key_type == 1
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if transactional else ErrorCode.INVALID_REQUEST
    if version < 4:
        one = await rig.ask(
            FindCoordinatorRequest(key="x", key_type=key_type), FindCoordinatorResponse, version
        )
        assert (one.error_code, one.node_id) == (code, -1)
    else:
        request = FindCoordinatorRequest(coordinator_keys=["x"], key_type=key_type)
        many = await rig.ask(request, FindCoordinatorResponse, version)
        assert [(c.key, c.error_code, c.node_id) for c in many.coordinators] == [("x", code, -1)]


async def test_a_coordinator_that_is_not_alive_is_not_named(rig: Rig) -> None:
    listeners = (Listener("PLAINTEXT", "127.0.0.1", 9093),)
    await rig.propose(RegisterBroker(2, listeners, incarnation="other"))
    await rig.create(OFFSETS_TOPIC, assignments=[[2]])
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    alive = await rig.ask(request, FindCoordinatorResponse, 4)
    assert (alive.coordinators[0].node_id, alive.coordinators[0].port) == (2, 9093)
    rig.session.listener = "INTERNAL"  # It has no such listener.
    gone = await rig.ask(request, FindCoordinatorResponse, 4)
    assert gone.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(10))
async def test_a_classic_member_through_its_life(rig: Rig, version: int) -> None:
    await find(rig)
    joined = await join(rig, version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = await join(rig, version, joined.member_id)
    member = joined.member_id
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, member)
    assert joined.protocol_name == "range"
    assert [m.member_id for m in joined.members] == [member]

    given = write_assignment({"t": [0, 1, 2]}, 1)
    sync_version = min(version, 5)
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member,
        protocol_type="consumer" if sync_version >= 5 else None,
        protocol_name="range" if sync_version >= 5 else None,
        assignments=[SyncGroupRequestAssignment(member_id=member, assignment=given)],
    )
    synced = await rig.ask(sync, SyncGroupResponse, sync_version)
    assert (synced.error_code, bytes(synced.assignment)) == (0, given)

    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
    assert (await rig.ask(beat, HeartbeatResponse, min(version, 4))).error_code == 0

    commit_version = max(1, version)
    codes = await commit(rig, commit_version, {("t", 0): 3}, generation=1, member_id=member)
    assert codes == {("t", 0): ErrorCode.NONE}
    stale = await commit(rig, commit_version, {("t", 0): 3}, generation=0, member_id=member)
    assert stale == {("t", 0): ErrorCode.ILLEGAL_GENERATION}

    leave_version = min(version, 5)
    leave = (
        LeaveGroupRequest(group_id="g", member_id=member)
        if leave_version < 3
        else LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member)])
    )
    left = await rig.ask(leave, LeaveGroupResponse, leave_version)
    assert (left.error_code, [m.error_code for m in left.members]) == (0, [] if leave_version < 3 else [0])
    again = await rig.ask(leave, LeaveGroupResponse, leave_version)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert (again.error_code, [m.error_code for m in again.members]) == (
        (unknown, []) if leave_version < 3 else (0, [unknown])
    )
    assert (await rig.ask(beat, HeartbeatResponse, min(version, 4))).error_code == unknown


@pytest.mark.parametrize("version", [3, 5, 9])
async def test_a_client_with_the_longest_name_is_a_member_like_any_other(rig: Rig, version: int) -> None:
    """A member is called as its client, and more."""
    rig.client_id = "é" * (STRING_BYTES_MAX // 2)
    await find(rig)
    joined = await join(rig, version)
    if version >= 4:
        joined = await join(rig, version, joined.member_id)
    member = joined.member_id
    assert (joined.error_code, [m.member_id for m in joined.members]) == (0, [member])
    assert STRING_BYTES_MAX - 2 <= len(member.encode()) <= STRING_BYTES_MAX
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member,
        assignments=[SyncGroupRequestAssignment(member_id=member, assignment=b"given")],
    )
    assert bytes((await rig.ask(sync, SyncGroupResponse, 3)).assignment) == b"given"
    described = await rig.ask(DescribeGroupsRequest(groups=["g"]), DescribeGroupsResponse, 4)
    (group,) = described.groups
    assert (group.error_code, group.group_state) == (0, "Stable")
    (shown,) = group.members
    assert (shown.member_id, shown.client_id) == (member, rig.client_id)


def test_the_name_of_a_client_that_is_not_utf_8_fits_where_it_is_kept() -> None:
    """Each of its bytes becomes a character of three."""
    frame = Struct(">hhih").pack(11, 3, 1, STRING_BYTES_MAX) + b"\xff" * STRING_BYTES_MAX
    request = FramedRequest(Session("PLAINTEXT", "127.0.0.1"), memoryview(frame), owned=True)
    assert client_of(request).id == "\ufffd" * (STRING_BYTES_MAX // 3)


async def test_a_retention_beyond_all_times_is_the_longest(rig: Rig) -> None:
    await find(rig)
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        retention_time_ms=2**63 - 1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
    )
    answer = await rig.ask(request, OffsetCommitResponse, 4)
    assert [p.error_code for p in answer.topics[0].partitions] == [0]
    assert await fetch(rig, 5, {"t": [0]}) == (ErrorCode.NONE, {("t", 0): (7, ErrorCode.NONE)})


@pytest.mark.parametrize(("version", "rebalance_ms"), [(0, 10_000), (1, 60_000)])
async def test_a_join_without_a_rebalance_timeout_uses_that_of_the_session(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, version: int, rebalance_ms: int
) -> None:
    added: list[ClassicMember] = []
    add = ClassicGroup.add

    def watched(group: ClassicGroup, member: ClassicMember) -> None:
        added.append(member)
        add(group, member)

    monkeypatch.setattr(ClassicGroup, "add", watched)
    await find(rig)
    assert (await join(rig, version)).error_code == ErrorCode.NONE
    assert [(m.session_timeout_ms, m.rebalance_timeout_ms) for m in added] == [(10_000, rebalance_ms)]


async def test_sync_of_version_5_must_name_the_protocol(rig: Rig) -> None:
    await find(rig)
    answer = await rig.ask(SyncGroupRequest(group_id="g", member_id="m"), SyncGroupResponse, 5)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def beat(rig: Rig, epoch: int, member: str = "m", version: int = 1) -> ConsumerGroupHeartbeatResponse:
    joins = epoch == 0
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000 if joins else -1,
        subscribed_topic_names=["t"] if joins else None,
        topic_partitions=[] if joins else None,
    )
    return await rig.ask(request, ConsumerGroupHeartbeatResponse, version)


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_of_the_consumer_protocol_through_its_life(rig: Rig, version: int) -> None:
    await find(rig)
    joined = await beat(rig, 0, "" if version == 0 else "m", version)
    assert (joined.error_code, joined.member_epoch) == (0, 2)
    assert joined.member_id
    member = joined.member_id
    assert joined.assignment is not None
    (given,) = joined.assignment.topic_partitions
    assert (given.topic_id, list(given.partitions)) == (rig.broker.image.topics["t"].id, [0, 1, 2])
    assert (await beat(rig, 2, member, version)).assignment is None
    assert (await commit(rig, 9, {("t", 1): 4}, generation=2, member_id=member)) == {("t", 1): ErrorCode.NONE}

    described = await rig.ask(
        ConsumerGroupDescribeRequest(group_ids=["g", "other", ""], include_authorized_operations=True),
        ConsumerGroupDescribeResponse,
        version,
    )
    group, other, nameless = described.groups
    assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", 2, "uniform")
    assert group.members[0].assignment.topic_partitions[0].topic_name == "t"
    assert group.authorized_operations > 0
    assert other.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert nameless.error_code == ErrorCode.INVALID_GROUP_ID

    assert (await beat(rig, -1, member, version)).error_code == 0
    assert (await beat(rig, 2, member, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_filters_of_a_list_are_looked_at_once_for_all_partitions(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may send 250,000 of them, and a broker may coordinate fifty partitions."""
    looked_at: list[int] = []

    def counted(filters: list[str]) -> frozenset[str]:
        looked_at.append(len(filters))
        return describe.words(filters)

    monkeypatch.setattr(list_groups, "words", counted)
    await find(rig)
    await commit(rig, 9, {("t", 0): 1}, group="simple")
    many = [f" {n} " for n in range(200_000)]
    began = time.thread_time()
    answer = await rig.ask(ListGroupsRequest(states_filter=[*many, " EMPTY"]), ListGroupsResponse, 4)
    assert time.thread_time() - began < 2
    assert [group.group_id for group in answer.groups] == ["simple"]
    assert looked_at == [200_001, 0]


async def test_list_describe_delete(rig: Rig) -> None:
    await find(rig)
    await beat(rig, 0)
    member = (await join(rig, 3, group="classic")).member_id
    await commit(rig, 9, {("t", 0): 1}, group="simple")
    for version in range(6):
        answer = await rig.ask(ListGroupsRequest(), ListGroupsResponse, version)
        assert {g.group_id: g.protocol_type for g in answer.groups} == {
            "g": "consumer",
            "classic": "consumer",
            "simple": "",
        }
    by_state = await rig.ask(ListGroupsRequest(states_filter=["stable", "EMPTY"]), ListGroupsResponse, 4)
    assert {g.group_id: g.group_state for g in by_state.groups} == {"g": "Stable", "simple": "Empty"}
    by_type = await rig.ask(ListGroupsRequest(types_filter=["Consumer"]), ListGroupsResponse, 5)
    assert [(g.group_id, g.group_type) for g in by_type.groups] == [("g", "consumer")]
    nothing = await rig.ask(ListGroupsRequest(types_filter=["nonsense"]), ListGroupsResponse, 5)
    assert nothing.groups == []

    for version in range(7):
        request = DescribeGroupsRequest(
            groups=["classic", "nobody", "g"], include_authorized_operations=version >= 3
        )
        found = await rig.ask(request, DescribeGroupsResponse, version)
        classic, nobody, modern = found.groups
        assert (classic.group_state, classic.members[0].member_id) == ("CompletingRebalance", member)
        assert classic.members[0].client_host == "/127.0.0.1"
        expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
        assert [(g.group_state, g.error_code) for g in (nobody, modern)] == [("Dead", expected)] * 2
        assert (classic.authorized_operations > 0) == (version >= 3)

    for version in range(3):
        await commit(rig, 9, {("t", 0): 1}, group="simple")
        request_ = DeleteGroupsRequest(groups_names=["simple", "classic", "g", "nobody", "simple"])
        deleted = await rig.ask(request_, DeleteGroupsResponse, version)
        assert {r.group_id: ErrorCode(r.error_code) for r in deleted.results} == {
            "simple": ErrorCode.NONE,
            "classic": ErrorCode.NON_EMPTY_GROUP,
            "g": ErrorCode.NON_EMPTY_GROUP,
            "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        assert (await fetch(rig, 5, {"t": [0]}, "simple"))[1] == {("t", 0): (-1, ErrorCode.NONE)}


async def test_offset_delete(rig: Rig) -> None:
    await find(rig)
    await rig.topic("u", 1)
    await commit(rig, 9, {("t", 0): 1, ("u", 0): 2})
    await beat(rig, 0)
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for name in ("t", "u", "nowhere")
        ],
    )
    answer = await rig.ask(request, OffsetDeleteResponse, 0)
    assert {t.name: ErrorCode(t.partitions[0].error_code) for t in answer.topics} == {
        "t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        "u": ErrorCode.NONE,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    _, left = await fetch(rig, 9, None)
    assert left == {("t", 0): (1, ErrorCode.NONE)}
    missing = await rig.ask(OffsetDeleteRequest(group_id="other"), OffsetDeleteResponse, 0)
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_offsets_go_with_their_topic(rig: Rig) -> None:
    await find(rig)
    await rig.topic("u", 1)
    await commit(rig, 9, {("t", 0): 1, ("u", 0): 2})
    await rig.propose(DeleteTopic(rig.broker.image.topics["u"].id))
    # Written behind the tombstones, so durable after them.
    await commit(rig, 9, {("t", 1): 3})
    assert (await fetch(rig, 9, None))[1] == {("t", 0): (1, ErrorCode.NONE), ("t", 1): (3, ErrorCode.NONE)}


async def test_offsets_of_an_empty_group_expire(tmp_path: Path) -> None:
    rig = await Rig.start(
        tmp_path / "store", offsets_retention_check_interval_ms=10, offsets_topic_num_partitions=1
    )
    await rig.topic("t", 1)
    await find(rig)
    await commit(rig, 9, {("t", 0): 1}, group="old")
    rig.clock.ahead_ms += 6 * 86_400_000
    await commit(rig, 9, {("t", 0): 1}, group="new")
    rig.clock.ahead_ms += 2 * 86_400_000
    async with asyncio.timeout(60):
        names = {"old", "new"}
        while names != {"new"}:
            listing = await rig.ask(ListGroupsRequest(), ListGroupsResponse, 4)
            names = {group.group_id for group in listing.groups}
    assert (await fetch(rig, 9, {"t": [0]}, "old"))[1] == {("t", 0): (-1, ErrorCode.NONE)}
    assert (await fetch(rig, 9, {"t": [0]}, "new"))[1] == {("t", 0): (1, ErrorCode.NONE)}
    await rig.close()


async def test_a_write_that_fails_is_an_error_for_each_partition(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await find(rig)
    await commit(rig, 9, {("t", 0): 1})

    def fail(partition: object, batch: object, done: object) -> None:
        assert callable(done)
        asyncio.get_running_loop().call_soon(done, ErrorCode.KAFKA_STORAGE_ERROR)

    monkeypatch.setattr(rig.broker.ledger, "append", fail)
    codes = await commit(rig, 9, {("t", 0): 5, ("t", 1): 6})
    assert set(codes.values()) == {ErrorCode.NOT_COORDINATOR}
    assert (await beat(rig, 0)).error_code == ErrorCode.NOT_COORDINATOR
    monkeypatch.undo()
    assert (await fetch(rig, 9, {"t": [0, 1]}))[1] == {
        ("t", 0): (1, ErrorCode.NONE),
        ("t", 1): (-1, ErrorCode.NONE),
    }
    assert (await beat(rig, 0)).error_code == ErrorCode.NONE


async def test_a_shard_that_fails_is_loaded_anew(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the groups costs one answer, not what was committed."""
    await find(rig)
    await commit(rig, 9, {("t", 0): 1})

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("penstock.groups.offsets.requests.OffsetRequests.commit", broken)
    assert set((await commit(rig, 9, {("t", 0): 5})).values()) == {ErrorCode.UNKNOWN_SERVER_ERROR}
    monkeypatch.undo()
    assert (await fetch(rig, 9, {"t": [0]}))[1] == {("t", 0): (1, ErrorCode.NONE)}
    assert set((await commit(rig, 9, {("t", 0): 6})).values()) == {ErrorCode.NONE}


async def test_a_loading_partition_makes_requests_wait_and_then_come_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await find(rig)
    await commit(rig, 9, {("t", 0): 1})
    gate = asyncio.Event()

    async def slow(ledger: Ledger, partition: Partition, shard: GroupShard) -> int:
        await gate.wait()
        return await load(ledger, partition, shard)

    monkeypatch.setattr("penstock.broker.shards.coordinator.load", slow)
    monkeypatch.setattr("penstock.broker.shards.coordinator.LOAD_WAIT_SECONDS", 0.05)
    service = rig.broker.services.groups
    for live in list(service.live_shards()):
        service._broken(live)
        live.close()
    codes = await commit(rig, 9, {("t", 0): 2})
    assert codes == {("t", 0): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    code, found = await fetch(rig, 9, {"t": [0]})
    assert (code, found) == (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        {("t", 0): (-1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)},
    )
    listing = await rig.ask(ListGroupsRequest(), ListGroupsResponse, 4)
    assert listing.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    # Nobody is thrown out because its coordinator loads.
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert (await rig.ask(heartbeat, HeartbeatResponse, 4)).error_code == ErrorCode.NONE
    monkeypatch.setattr("penstock.broker.shards.coordinator.LOAD_WAIT_SECONDS", 5.0)
    asyncio.get_running_loop().call_later(0.05, gate.set)
    assert (await fetch(rig, 9, {"t": [0]}))[1] == {("t", 0): (1, ErrorCode.NONE)}


async def test_settings_that_change_while_a_partition_is_loaded_hold_when_it_serves(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await find(rig)
    await commit(rig, 9, {("t", 0): 1})
    reading, gate = asyncio.Event(), asyncio.Event()

    async def slow(ledger: Ledger, partition: Partition, shard: GroupShard) -> int:
        reading.set()
        await gate.wait()
        return await load(ledger, partition, shard)

    monkeypatch.setattr("penstock.broker.shards.coordinator.load", slow)
    service = rig.broker.services.groups
    for live in list(service.live_shards()):
        service._broken(live)
        live.close()
    waiting = asyncio.ensure_future(fetch(rig, 9, {"t": [0]}))
    await reading.wait()
    rig.broker.settings = rig.broker.settings.with_values({"group.max.size": "1"})
    await rig.topic("other")
    gate.set()
    await waiting
    assert {live.shard._c.settings.group_max_size for live in service.live_shards()} == {1}


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_offsets_topic_says_how_much_is_committed_at_once(rig: Rig, restarted: bool) -> None:
    asked = {("t", 0): 1, ("t", 1): 2, ("t", 2): 3}
    await find(rig)
    assert set((await commit(rig, 8, asked)).values()) == {ErrorCode.NONE}
    await rig.configure(OFFSETS_TOPIC, max_message_bytes="150")
    if restarted:
        service = rig.broker.services.groups
        for live in list(service.live_shards()):
            service._broken(live)
            live.close()
    assert set((await commit(rig, 8, asked)).values()) == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert await commit(rig, 8, {("t", 0): 7}) == {("t", 0): ErrorCode.NONE}
    await rig.configure(OFFSETS_TOPIC, max_message_bytes="300")
    assert set((await commit(rig, 8, asked)).values()) == {ErrorCode.NONE}
