"""Records of internal topics and what clients put inside group messages."""

from random import Random

import pytest

from penstock.wire.codec import decode_versioned, encode, encode_versioned
from penstock.wire.errors import WireError
from penstock.wire.schema import TopMessage
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from penstock.wire.schemas.control_records import ControlRecordTypeSchema, EndTxnMarker
from penstock.wire.schemas.offsets_topic import (
    KEY_OF,
    VALUE_OF,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    read_key,
)
from penstock.wire.schemas.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue
from tests.wire.oracles import kio_data, same
from tests.wire.samples import name_of, sample

SCHEMAS: list[type[TopMessage]] = [
    *VALUE_OF,
    *VALUE_OF.values(),
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ControlRecordTypeSchema,
    EndTxnMarker,
    TransactionLogKey,
    TransactionLogValue,
]


@pytest.mark.parametrize("cls", SCHEMAS, ids=name_of)
def test_what_is_written_is_read(cls: type[TopMessage]) -> None:
    for version in range(cls.min_version, cls.max_version + 1):
        for seed in range(5):
            message = sample(cls, version, Random(seed))
            data = encode_versioned(message, version)
            assert data[:2] == version.to_bytes(2, "big")
            assert decode_versioned(cls, data) == message


@pytest.mark.parametrize(
    ("cls", "name", "versions"),
    [
        (ConsumerProtocolSubscription, "consumer_protocol_subscription", range(4)),
        (ConsumerProtocolAssignment, "consumer_protocol_assignment", range(4)),
        (ControlRecordTypeSchema, "control_record_type_schema", range(1)),
        (EndTxnMarker, "end_txn_marker", range(1)),
    ],
)
def test_agrees_with_an_independent_codec(cls: type[TopMessage], name: str, versions: range) -> None:
    for version in versions:
        oracle = kio_data(name, version)
        for seed in range(4):
            message = sample(cls, version, Random(seed))
            theirs = oracle.decode(encode(message, version))
            assert same(message, theirs, version)
            assert oracle.encode(theirs) == encode(message, version)


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        (OffsetCommitKey("g", "t", 3), 1, "0001 0001 67 0001 74 00000003"),
        (
            OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9),
            3,
            "0003 0000000000000005 00000002 0001 6d 0000000000000009",
        ),
        (
            OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9, expire_timestamp=10),
            1,
            "0001 0000000000000005 0001 6d 0000000000000009 000000000000000a",
        ),
        (
            OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9),
            4,
            "0004 0000000000000005 00000002 02 6d 0000000000000009 00",
        ),
        (GroupMetadataKey("g"), 2, "0002 0001 67"),
        (
            GroupMetadataValue(
                "consumer", 4, None, None, 7, [MemberMetadata("m", None, "c", "h", 1, 2, b"s", b"a")]
            ),
            3,
            "0003 0008 636f6e73756d6572 00000004 ffff ffff 0000000000000007 00000001"
            "0001 6d ffff 0001 63 0001 68 00000001 00000002 00000001 73 00000001 61",
        ),
        (ConsumerGroupMemberMetadataKey("g", "m"), 5, "0005 0001 67 0001 6d"),
        (
            ConsumerGroupMemberMetadataValue(
                instance_id=None,
                rack_id=None,
                client_id="c",
                client_host="h",
                subscribed_topic_names=["t"],
                subscribed_topic_regex=None,
                rebalance_timeout_ms=1,
                server_assignor=None,
                classic_member_metadata=ClassicMemberMetadata(5, [ClassicProtocol("r", b"x")]),
            ),
            0,
            "0000 00 00 02 63 02 68 02 02 74 00 00000001 00 01 00 0c 01 00000005 02 02 72 02 78 00 00",
        ),
        (TransactionLogKey("x"), 0, "0000 0001 78"),
        (
            TransactionLogValue(
                producer_id=1,
                producer_epoch=2,
                transaction_timeout_ms=3,
                transaction_status=4,
                transaction_partitions=[PartitionsSchema("t", [0])],
                transaction_last_update_timestamp_ms=5,
                transaction_start_timestamp_ms=6,
            ),
            0,
            "0000 0000000000000001 0002 00000003 04 00000001 0001 74 00000001 00000000"
            "0000000000000005 0000000000000006",
        ),
    ],
)
def test_layout_by_hand(message: TopMessage, version: int, data: str) -> None:
    """Written out from Kafka's description of these records, for which no independent codec is at hand."""
    assert encode_versioned(message, version).hex() == data.replace(" ", "")


def test_a_key_says_what_it_is() -> None:
    for kind, cls in KEY_OF.items():
        message = sample(cls, kind, Random(kind))
        assert read_key(encode_versioned(message, kind)) == message
    for bad in (b"", b"\0", b"\0\x63\0\1g", b"\xff\xff"):
        with pytest.raises(WireError):
            read_key(bad)
