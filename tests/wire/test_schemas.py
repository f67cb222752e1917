"""Records of internal topics and what clients put inside group messages."""

from random import Random

import pytest

from penstock.wire.codec import decode_versioned, encode, encode_versioned
from penstock.wire.schema import TopMessage
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from penstock.wire.schemas.control_records import ControlRecordTypeSchema, EndTxnMarker
from tests.wire.oracles import kio_data, same
from tests.wire.samples import name_of, sample

SCHEMAS: list[type[TopMessage]] = [
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ControlRecordTypeSchema,
    EndTxnMarker,
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
