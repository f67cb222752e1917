"""Offsets that go away by themselves: never one that is being committed at that moment."""

from penstock.settings.groups import GroupSettings
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.api.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.groups.world import World

MINUTE_MS = 60_000


def commit(world: World, offset: int) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    return world.ask(world.shard.commit_offsets, OffsetCommitRequest(group_id="g", topics=[topic]), 9)


def flush_all(world: World) -> None:
    while world.in_flight is not None:
        world.flush()


def committed(world: World) -> int:
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    answer = world.shard.fetch_offsets(
        OffsetFetchRequestGroup(group_id="g", topics=[topic]), require_stable=True
    )
    return answer.topics[0].partitions[0].committed_offset


def test_a_commit_on_its_way_outlives_the_offset_of_the_topic_before() -> None:
    """The first commit is durable only after its topic was deleted. While the second one, to the topic of the
    same name, is on its way, another topic goes."""
    world = World({"t": 1, "other": 1}, prompt=False)
    commit(world, 1)
    world.set_topics({"other": 1})
    flush_all(world)
    world.set_topics({"t": 1, "other": 1}, {"t": 1})
    ticket = commit(world, 2)
    world.set_topics({"t": 1}, {"t": 1})
    flush_all(world)
    answer = world.answers[ticket]
    assert isinstance(answer, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == 0
    assert committed(world) == 2
    world.restart()
    assert committed(world) == 2


def test_a_commit_on_its_way_outlives_the_expiry_of_the_one_before() -> None:
    settings = GroupSettings(offsets_retention_minutes=1, offsets_retention_check_interval_ms=10 * MINUTE_MS)
    world = World({"t": 1}, settings=settings, prompt=False)
    commit(world, 1)
    flush_all(world)
    world.advance(5 * MINUTE_MS)
    commit(world, 2)
    world.advance(6 * MINUTE_MS)
    flush_all(world)
    assert committed(world) == 2
    world.restart()
    assert committed(world) == 2


def test_offsets_go_with_their_topic_and_after_their_time() -> None:
    settings = GroupSettings(offsets_retention_minutes=1, offsets_retention_check_interval_ms=MINUTE_MS)
    world = World({"t": 1}, settings=settings)
    commit(world, 1)
    world.set_topics({})
    assert committed(world) == -1
    world.set_topics({"t": 1}, {"t": 1})
    commit(world, 1)
    world.advance(3 * MINUTE_MS)
    assert committed(world) == -1
