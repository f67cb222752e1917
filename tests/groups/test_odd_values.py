"""Values that are legal and far from usual end in an answer, not in a shard that must be loaded anew."""

import pytest

from penstock.groups.classic.joining import OFFER_BYTES_MAX
from penstock.groups.core import Client
from penstock.settings.groups import GroupSettings
from penstock.wire.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.api.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from penstock.wire.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from penstock.wire.codec import encode
from penstock.wire.errors import ErrorCode
from tests.groups.world import World

LONG_MAX = 2**63 - 1
YEAR_MS = 365 * 86_400_000
NAME_BYTES_MAX = 32_767


def test_an_offset_may_be_kept_without_end() -> None:
    world = World({"t": 1})
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = OffsetCommitRequest(group_id="g", retention_time_ms=LONG_MAX, topics=[topic])
    answer = world.asked(world.shard.commit_offsets, request, 2)
    assert isinstance(answer, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == 0
    world.advance(YEAR_MS)
    world.restart()
    asked = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    found = world.shard.fetch_offsets(asked, require_stable=True)
    assert found.topics[0].partitions[0].committed_offset == 7


def test_a_member_whose_client_has_the_longest_name_is_a_member() -> None:
    """The id that is made of it fits into every version of an answer, and into the record of the group."""
    world = World({"t": 1})
    client = Client("\N{LATIN SMALL LETTER E WITH ACUTE}" * (NAME_BYTES_MAX // 2), "/127.0.0.1")
    asked = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined = world.asked(world.shard.join_group, asked, 3, client)
    assert isinstance(joined, JoinGroupResponse)
    assert encode(joined, 3)
    share = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[share],
    )
    synced = world.asked(world.shard.sync_group, request)
    assert isinstance(synced, SyncGroupResponse)
    assert synced.assignment == b"all"
    world.restart()
    described = world.shard.describe_group("g", 5)
    assert [member.member_id for member in described.members] == [joined.member_id]


def test_what_a_member_offers_is_bounded() -> None:
    """It stays in memory with the member, and is told to the leader."""
    world = World({"t": 1})

    def joined(*sizes: int) -> int:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(name=str(at), metadata=bytes(size)) for at, size in enumerate(sizes)
            ],
        )
        answer = world.asked(world.shard.join_group, request, 3, Client("c", "/127.0.0.1"))
        assert isinstance(answer, JoinGroupResponse)
        return answer.error_code

    half = OFFER_BYTES_MAX // 2
    assert joined(half, half - 1) == ErrorCode.MESSAGE_TOO_LARGE
    assert world.shard.list_groups(set(), set()) == []
    assert joined(half, half - 2) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("letter", "most"),
    [
        ("m", 8),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}", 8),
        ("\N{CJK UNIFIED IDEOGRAPH-4E2D}", 8),
        ("\N{ROCKET}", 4),
    ],
)
def test_the_text_beside_an_offset_is_counted_as_java_does(letter: str, most: int) -> None:
    world = World({"t": 1}, settings=GroupSettings(offset_metadata_max_bytes=8))

    def committed(text: str) -> int:
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=7, committed_metadata=text
        )
        topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
        answer = world.asked(world.shard.commit_offsets, OffsetCommitRequest(group_id="g", topics=[topic]), 8)
        assert isinstance(answer, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    assert committed(letter * most) == ErrorCode.NONE
    assert committed(letter * (most + 1)) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    asked = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    found = world.shard.fetch_offsets(asked, require_stable=True)
    assert found.topics[0].partitions[0].metadata == letter * most
