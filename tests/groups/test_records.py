"""The records of `__consumer_offsets`, byte for byte as Kafka 4.3.1's own classes write them."""

import contextlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    GroupMetadataKey,
    GroupMetadataValue,
    Key,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    TargetTopicPartitions,
    Value,
    encode_key,
    encode_value,
    read_record,
)
from penstock.shards.partitioner import java_hash, partition_of
from penstock.wire.codec import encode_versioned
from penstock.wire.errors import WireError
from tests.wire.samples import sample

TOPIC_ID = bytes(range(1, 17))

KEYS: list[tuple[Key, str]] = [
    (OffsetCommitKey(group="g", topic="t", partition=3), "000100016700017400000003"),
    (GroupMetadataKey(group="g"), "0002000167"),
    (ConsumerGroupMetadataKey(group_id="g"), "0003000167"),
    (ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"), "000500016700016d"),
    (ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), "0006000167"),
    (ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"), "000700016700016d"),
    (ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"), "000800016700016d"),
    (ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="v.*"), "00100001670003762e2a"),
]

VALUES: list[tuple[Key, Value, str]] = [
    (
        KEYS[0][0],
        OffsetCommitValue(offset=7, metadata="m", commit_timestamp=9, expire_timestamp=10),
        "0001000000000000000700016d0000000000000009000000000000000a",
    ),
    (
        KEYS[0][0],
        OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9),
        "000300000000000000070000000200016d0000000000000009",
    ),
    (
        KEYS[0][0],
        OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9, topic_id=TOPIC_ID),
        "0004000000000000000700000002026d00000000000000090100100102030405060708090a0b0c0d0e0f10",
    ),
    (
        KEYS[1][0],
        GroupMetadataValue(
            protocol_type="consumer",
            generation=4,
            protocol="range",
            leader="a",
            current_state_timestamp=9,
            members=[
                MemberMetadata(
                    member_id="a",
                    group_instance_id="i",
                    client_id="c",
                    client_host="/h",
                    rebalance_timeout=5,
                    session_timeout=6,
                    subscription=b"\x01",
                    assignment=b"\x02\x03",
                )
            ],
        ),
        "00030008636f6e73756d657200000004000572616e67650001610000000000000009"
        "0000000100016100016900016300022f6800000005000000060000000101000000020203",
    ),
    (
        KEYS[1][0],
        GroupMetadataValue(generation=4, current_state_timestamp=9),
        "0003000000000004ffffffff000000000000000900000000",
    ),
    (
        KEYS[2][0],
        ConsumerGroupMetadataValue(epoch=4, metadata_hash=-5),
        "000000000004010008fffffffffffffffb",
    ),
    (
        KEYS[3][0],
        ConsumerGroupMemberMetadataValue(
            rack_id="r",
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t", "u"],
            subscribed_topic_regex="",
            rebalance_timeout_ms=5,
            server_assignor="range",
        ),
        "00000002720263032f68030274027501000000050672616e676500",
    ),
    (
        KEYS[3][0],
        ConsumerGroupMemberMetadataValue(
            instance_id="i",
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t"],
            subscribed_topic_regex="v.*",
            rebalance_timeout_ms=5,
            classic_member_metadata=ClassicMemberMetadata(
                session_timeout_ms=6,
                supported_protocols=[ClassicProtocol(name="range", metadata=b"\x01\x02")],
            ),
        ),
        "00000269000263032f6802027404762e2a00000005000100110100000006020672616e67650301020000",
    ),
    (
        KEYS[4][0],
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=4, assignment_timestamp=9),
        "0000000000040100080000000000000009",
    ),
    (
        KEYS[5][0],
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[TargetTopicPartitions(topic_id=TOPIC_ID, partitions=[0, 2])]
        ),
        "0000020102030405060708090a0b0c0d0e0f100300000000000000020000",
    ),
    (
        KEYS[6][0],
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=4,
            previous_member_epoch=3,
            state=1,
            assigned_partitions=[
                CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[0], assignment_epochs=[3])
            ],
            partitions_pending_revocation=[
                CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[1], assignment_epochs=[2])
            ],
        ),
        "0000000000040000000301020102030405060708090a0b0c0d0e0f100200000000010005"
        "0200000003020102030405060708090a0b0c0d0e0f100200000001010005020000000200",
    ),
    (
        KEYS[7][0],
        ConsumerGroupRegularExpressionValue(topics=["v1"], version=8, timestamp=9),
        "0000020376310000000000000008000000000000000900",
    ),
]


@pytest.mark.parametrize(("key", "expected"), KEYS, ids=lambda part: type(part).__name__)
def test_keys(key: Key, expected: str) -> None:
    assert encode_key(key).hex() == expected
    assert read_record(bytes.fromhex(expected), None) == (key, None)


@pytest.mark.parametrize(("key", "value", "expected"), VALUES, ids=lambda part: type(part).__name__)
def test_values(key: Key, value: Value, expected: str) -> None:
    assert encode_value(value).hex() == expected
    assert read_record(encode_key(key), bytes.fromhex(expected)) == (key, value)


@pytest.mark.parametrize("cls", {type(value): value for _, value, _ in VALUES}, ids=lambda cls: cls.__name__)
def test_every_version_is_read(cls: type[Value]) -> None:
    """Also those that this broker does not write: a topic may have been written by older ones."""
    key = next(encode_key(key) for key, value, _ in VALUES if type(value) is cls)
    for version in range(cls.min_version, cls.max_version + 1):
        for seed in range(5):
            value = sample(cls, version, Random(seed))
            found = read_record(key, encode_versioned(value, version))
            assert found is not None
            assert found[1] == value


def test_offsets_under_the_key_of_old_brokers_are_read() -> None:
    found = read_record(bytes.fromhex("000000016700017400000003"), encode_value(OffsetCommitValue(offset=1)))
    assert found == (KEYS[0][0], OffsetCommitValue(offset=1))


@pytest.mark.parametrize("kind", [4, 9, 10, 15, 17, 23, 99])
def test_what_is_not_known_is_skipped(kind: int) -> None:
    key = kind.to_bytes(2, "big") + bytes.fromhex("000167")
    found = read_record(key, b"\0\0whatever")
    assert found is None or found[1] is None


def test_versions_from_the_future_are_skipped() -> None:
    assert read_record(encode_key(KEYS[0][0]), b"\0\x63" + bytes(20)) is None


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60) | st.none())
def test_nonsense_is_refused_in_order(key: bytes, value: bytes | None) -> None:
    """Whoever writes to the topic cannot bring the coordinator down."""
    with contextlib.suppress(WireError):
        read_record(key, value)


@pytest.mark.parametrize(
    ("group", "hashed", "partition"),
    [
        ("", 0, 0),
        ("g", 103, 3),
        ("console-consumer-68257", 163250929, 29),
        ("Grüße-ß-😀", -865975129, 29),
        ("zzzzzzzzzzzz", 1097476992, 42),
    ],
)
def test_groups_live_where_kafka_puts_them(group: str, hashed: int, partition: int) -> None:
    assert java_hash(group) == hashed
    assert partition_of(group, 50) == partition


def test_the_one_hash_without_a_positive_twin() -> None:
    assert java_hash("polygenelubricants") == -0x8000_0000
    assert partition_of("polygenelubricants", 50) == 0
