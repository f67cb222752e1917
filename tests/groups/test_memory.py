"""What the members of all groups keep in a broker's memory is bounded."""

import pytest

from penstock.groups.memory import COUNT_AGAIN_MS, MEMBER_BYTES, PARTITION_BYTES, SMALL_BYTES, MemberMemory
from penstock.wire.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.api.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.errors import ErrorCode
from tests.groups.test_sizes import CLIENT, join, sync
from tests.groups.world import World

LIMIT = 1_000_000
FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE
LARGE = bytes(2 * SMALL_BYTES)


@pytest.fixture
def world() -> World:
    made = World({"t": 100})
    made.shard._c.memory = MemberMemory(made.shard.kept_bytes, LIMIT)
    return made


def leave(world: World, group: str, member: str) -> None:
    request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member)])
    world.asked(world.shard.leave_group, request)


def beat(world: World, group: str, topics: list[str], member: str = "m") -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=topics,
        topic_partitions=[],
    )
    answer = world.asked(world.shard.consumer_group_heartbeat, request, 1, CLIENT)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer.error_code


def test_members_of_many_groups_share_one_limit(world: World) -> None:
    members: list[str] = []
    while (answer := join(world, f"g{len(members)}", LARGE)).error_code == ErrorCode.NONE:
        members.append(answer.member_id)
    assert answer.error_code == FULL
    assert len(members) == LIMIT // (len(LARGE) + MEMBER_BYTES) == 7
    assert world.shard.kept_bytes() <= LIMIT
    assert len(world.shard.list_groups(frozenset(), frozenset())) == 7
    # Those who are in stay in, and small ones still come in.
    assert sync(world, "g0", members[0], 1, b"x").error_code == ErrorCode.NONE
    assert join(world, "g0", LARGE, members[0]).error_code == ErrorCode.NONE
    assert join(world, "small").error_code == ErrorCode.NONE
    assert beat(world, "consumers", ["t"]) == ErrorCode.NONE
    # Large assignments and subscriptions are refused as large members are, and nothing is changed.
    assert sync(world, "g1", members[1], 1, LARGE).error_code == FULL
    assert world.shard.describe_group("g1", 5).group_state == "CompletingRebalance"
    assert beat(world, "more", [f"{at:06}" for at in range(3_000)]) == FULL
    # When somebody went, there is room again.
    leave(world, "g6", members[6])
    world.advance(COUNT_AGAIN_MS)
    assert sync(world, "g1", members[1], 1, LARGE).error_code == ErrorCode.NONE


def test_small_members_have_a_limit_too(world: World) -> None:
    codes = [join(world, f"g{at}", bytes(SMALL_BYTES - 10_000)).error_code for at in range(60)]
    admitted = codes.count(ErrorCode.NONE)
    assert codes == [ErrorCode.NONE] * admitted + [FULL] * (60 - admitted)
    assert LIMIT < world.shard.kept_bytes() <= 2 * LIMIT


def test_groups_of_the_consumer_protocol_count_with_their_partitions(world: World) -> None:
    admitted = 0
    while beat(world, f"g{admitted}", ["t"]) == ErrorCode.NONE:
        admitted += 1
    assert (
        2 * LIMIT // (100 * PARTITION_BYTES + 2 * MEMBER_BYTES)
        <= admitted
        <= 2 * LIMIT // (100 * PARTITION_BYTES)
    )


def test_members_that_come_again_are_not_taken_for_more(world: World) -> None:
    """What is refused, or replaced, is added up too; it is counted before anybody is refused for it."""
    one = join(world, "g", LARGE)
    for generation in range(1, 50):
        assert sync(world, "g", one.member_id, generation, LARGE).error_code == ErrorCode.NONE
        assert join(world, "g", LARGE, one.member_id).error_code == ErrorCode.NONE
        world.advance(COUNT_AGAIN_MS)
    assert world.shard.kept_bytes() < 3 * len(LARGE)


def test_groups_that_are_loaded_count(world: World) -> None:
    held = 900_000
    memory = MemberMemory(lambda: held, LIMIT)
    assert memory.admits(90_000, 0)
    held = 950_000
    assert memory.admits(5_000, 1)
    memory.forget()
    assert not memory.admits(90_000, 2)
    assert memory.admits(50_000, 3)
