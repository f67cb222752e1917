"""The checks of single records."""

import pytest

from penstock.wire.batch import (
    HEADER_SIZE,
    Record,
    assemble,
    build_batch,
    encode_record,
    open_block,
    read_header,
)
from penstock.wire.buffers import Buffer
from penstock.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from penstock.wire.errors import BatchError, ErrorCode
from penstock.wire.validation import RecordError, TimestampLimits, validate_records

NOW = 1_700_000_000_000
RECORDS = [Record(n, NOW + n, b"k", b"v", (("h", None),)) for n in range(10)]
LIMITS = TimestampLimits(NOW, before_max_ms=1000, after_max_ms=100)


def check(data: Buffer, limits: TimestampLimits | None = LIMITS, *, keys: bool = False) -> list[RecordError]:
    header = read_header(data)
    return validate_records(open_block(data, 0, header), header, limits, keys_required=keys)


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_good_records(codec: int) -> None:
    data = build_batch(RECORDS, codec=codec)
    assert check(data, keys=True) == []


def test_compacted_topics_want_keys() -> None:
    records = [Record(0, NOW, b"", b"v"), Record(1, NOW, None, b"v"), Record(2, NOW, None, None)]
    data = build_batch(records)
    assert check(data) == []
    errors = check(data, keys=True)
    assert [(error.index, error.code) for error in errors] == [
        (1, ErrorCode.INVALID_RECORD),
        (2, ErrorCode.INVALID_RECORD),
    ]


def test_timestamps_have_limits_on_both_sides() -> None:
    times = [NOW, NOW - 1000, NOW - 1001, NOW + 100, NOW + 101, -1]
    data = build_batch([Record(at, time, b"k") for at, time in enumerate(times)])
    errors = check(data)
    assert [(error.index, error.code) for error in errors] == [
        (2, ErrorCode.INVALID_TIMESTAMP),
        (4, ErrorCode.INVALID_TIMESTAMP),
    ]
    assert errors[0].message == (
        f"Timestamp {NOW - 1001} of message with offset 2 is out of range. "
        f"The timestamp should be within [{NOW - 1000}, {NOW + 100}]"
    )
    assert check(data, None) == []
    assert check(data, TimestampLimits(NOW)) == []


def test_records_must_parse() -> None:
    good = build_batch(RECORDS)
    header = read_header(good)
    for block in (good[HEADER_SIZE:-1], good[HEADER_SIZE:] + b"\0", b"", b"\xff" * 20, b"\x80" * 30):
        with pytest.raises(BatchError) as refusal:
            check(assemble(header, block))
        assert refusal.value.code == ErrorCode.INVALID_RECORD


def test_offsets_must_count_from_zero() -> None:
    block = encode_record(Record(0, NOW), 0, NOW) + encode_record(Record(2, NOW), 0, NOW)
    data = assemble(read_header(build_batch([Record(0, NOW), Record(1, NOW)])), block)
    with pytest.raises(BatchError, match="record 1 has the offset delta 2"):
        check(data)
