"""A record that is larger than its topic takes (`max.message.bytes`) fails alone, and changes nothing."""

from penstock.groups.core import Client
from penstock.shards.journal import BATCH_BYTES_MAX, Journal
from penstock.shards.shard import Record
from penstock.wire.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.api.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from penstock.wire.batch import Record as BatchRecord
from penstock.wire.batch import build_batch
from penstock.wire.errors import ErrorCode
from tests.groups.world import World

CLIENT = Client("c", "/127.0.0.1")
TOO_LARGE = ErrorCode.UNKNOWN_SERVER_ERROR
"""What Kafka tells clients of MESSAGE_TOO_LARGE."""
MIB = 1 << 20


def join(
    world: World, group: str, metadata: bytes = b"m", member: str = "", instance: str | None = None
) -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    answer = world.asked(world.shard.join_group, request, 3, CLIENT)
    assert isinstance(answer, JoinGroupResponse)
    return answer


def sync(world: World, group: str, member: str, generation: int, assignment: bytes) -> SyncGroupResponse:
    request = SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        assignments=[SyncGroupRequestAssignment(member_id=member, assignment=assignment)],
    )
    answer = world.asked(world.shard.sync_group, request)
    assert isinstance(answer, SyncGroupResponse)
    return answer


def beat(
    world: World, topics: list[str] | None, epoch: int = 0, member: str = "m", instance: str | None = None
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member,
        member_epoch=epoch,
        instance_id=instance,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=topics,
        topic_partitions=[] if epoch == 0 else None,
    )
    answer = world.asked(world.shard.consumer_group_heartbeat, request, 1, CLIENT)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


MANY = [f"{number:06}{'n' * 200}" for number in range(10_000)]
"""Two megabytes of names."""


def test_a_journal_knows_how_large_a_batch_is() -> None:
    journal: Journal[None] = Journal(1)
    for key, value, count in ((1, 1, 1), (60, 70, 200), (62, 64, 1), (8_190, 8_193, 3), (70_000, 1 << 20, 2)):
        records = [Record(bytes(key), bytes(value))] * count
        size = len(build_batch([BatchRecord(at, 0, r.key, r.value) for at, r in enumerate(records)]))
        journal.topic_bytes_max = size
        assert journal.takes_together(iter(records)) == records
        assert journal.takes(records)
        journal.topic_bytes_max = size - 1
        assert journal.takes_together(iter(records)) is None
        assert journal.takes(records) == (count > 1)
    assert journal.takes([Record(bytes(1 << 21), None)])


def test_an_assignment_that_is_too_large_is_not_stored_and_the_next_one_is() -> None:
    world = World()
    one = join(world, "g")
    assert sync(world, "g", one.member_id, 1, bytes(2 * MIB)).error_code == TOO_LARGE
    assert world.batches == 0
    described = world.shard.describe_group("g", 5)
    assert (described.group_state, len(described.members)) == ("PreparingRebalance", 1)
    again = join(world, "g", member=one.member_id)
    assert again.generation_id == 2
    assert sync(world, "g", one.member_id, 2, b"x" * (MIB - 1_000)).error_code == ErrorCode.NONE
    world.restart()
    (member,) = world.shard.describe_group("g", 5).members
    assert member.member_assignment == b"x" * (MIB - 1_000)


def test_what_is_too_large_hurts_no_other_group_of_the_partition() -> None:
    world = World(prompt=False)
    one, other = join(world, "one"), join(world, "other")
    request = SyncGroupRequest(group_id="other", generation_id=1, member_id=other.member_id)
    waiting = world.ask(world.shard.sync_group, request)
    assert sync(world, "one", one.member_id, 1, bytes(2 * MIB)).error_code == TOO_LARGE
    world.flush()
    answer = world.answers.pop(waiting)
    assert isinstance(answer, SyncGroupResponse)
    assert answer.error_code == ErrorCode.NONE
    leaving = LeaveGroupRequest(group_id="one", members=[MemberIdentity(member_id=one.member_id)])
    ticket = world.ask(world.shard.leave_group, leaving)
    world.flush()
    left = world.answers.pop(ticket)
    assert isinstance(left, LeaveGroupResponse)
    assert (left.error_code, left.members[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)


def test_a_static_member_that_comes_back_too_large_leaves_the_old_one_in_its_place() -> None:
    world = World()
    old = join(world, "g", instance="i")
    sync(world, "g", old.member_id, 1, b"x")
    refused = join(world, "g", bytes(2 * MIB), instance="i")
    assert (refused.error_code, refused.generation_id, refused.leader, refused.member_id) == (
        TOO_LARGE,
        1,
        old.member_id,
        "",
    )
    (member,) = world.shard.describe_group("g", 5).members
    assert (member.member_id, member.member_metadata) == (old.member_id, b"m")
    world.advance(9_000)
    assert len(world.shard.describe_group("g", 5).members) == 1
    world.advance(2_000)
    assert world.shard.describe_group("g", 5).members == []


def test_a_subscription_that_is_too_large_makes_no_group_and_changes_none() -> None:
    world = World()
    assert beat(world, MANY).error_code == TOO_LARGE
    assert world.shard.list_groups(frozenset(), frozenset()) == []
    assert beat(world, ["t"]).member_epoch == 2
    assert beat(world, MANY, 2).error_code == TOO_LARGE
    assert beat(world, None, 2).member_epoch == 2
    described = world.shard.describe_consumer_group("g")
    assert (described.group_epoch, described.members[0].subscribed_topic_names) == (2, ["t"])
    world.restart()
    assert beat(world, None, 2).member_epoch == 2


def test_a_static_member_that_could_not_be_replaced_is_still_removed_when_it_is_silent() -> None:
    world = World()
    session_ms = world.settings.group_consumer_session_timeout_ms
    assert beat(world, ["t"], member="old", instance="i").member_epoch == 2
    away = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="old", member_epoch=-2, instance_id="i", rebalance_timeout_ms=60_000
    )
    world.asked(world.shard.consumer_group_heartbeat, away, 1, CLIENT)
    assert beat(world, MANY, member="new", instance="i").error_code == TOO_LARGE
    assert [m.member_id for m in world.shard.describe_consumer_group("g").members] == ["old"]
    world.advance(session_ms + 1)
    assert world.shard.describe_consumer_group("g").members == []


def test_offsets_that_do_not_fit_into_one_batch_are_refused_together() -> None:
    world = World()

    def committed(count: int, metadata: str, group: str = "g") -> set[int]:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=at % 4, committed_offset=at, committed_metadata=metadata
                        )
                        for at in range(count)
                    ],
                )
            ],
        )
        answer = world.asked(world.shard.commit_offsets, request, 8)
        assert isinstance(answer, OffsetCommitResponse)
        assert len(answer.topics[0].partitions) == count
        return {partition.error_code for partition in answer.topics[0].partitions}

    assert committed(300, "x" * 4_000) == {TOO_LARGE}
    assert committed(250_000, "", "g" * 32_000) == {TOO_LARGE}  # 8 GB in records.
    assert world.batches == 0
    assert world.shard.list_groups(frozenset(), frozenset()) == []
    assert committed(10_000, "") == {ErrorCode.NONE}
    world.shard.set_topic_bytes_max(2 * BATCH_BYTES_MAX)
    assert committed(300, "x" * 4_000) == {ErrorCode.NONE}
