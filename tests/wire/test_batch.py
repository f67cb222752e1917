"""Record batches: against the builders of clients, and against damage."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.batch import (
    CONTROL,
    CRC_FROM,
    HEADER,
    HEADER_SIZE,
    STAMP,
    BatchHeader,
    Record,
    assemble,
    build_batch,
    check_batch,
    check_produced,
    iter_batches,
    iter_raw,
    iter_records,
    open_block,
    read_header,
    recompress,
    refresh_crc,
    set_log_append_time,
    set_max_timestamp,
    stamp,
)
from penstock.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from penstock.wire.errors import BatchError, ErrorCode, WireError
from penstock.wire.markers import ABORT, COMMIT, marker_batch, marker_kind
from tests.wire.clients import build, read

CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value", (("h", b"1"), ("n", None), ("ł", b""))),
    Record(1, 1_700_000_000_500, None, b"no key"),
    Record(2, 1_699_999_999_000, b"tombstone", None),
    Record(3, 1_700_000_000_001, b"", b""),
    *(Record(n, 1_700_000_000_000 + n, b"k%d" % n, b"x" * (n * 7)) for n in range(4, 200)),
]

records_strategy = st.lists(
    st.builds(
        Record,
        timestamp=st.integers(0, 2**53),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3).map(
            tuple
        ),
    ),
    min_size=1,
    max_size=20,
)


def numbered(records: list[Record], first: int = 0) -> list[Record]:
    return [
        Record(first + at, record.timestamp, record.key, record.value, record.headers)
        for at, record in enumerate(records)
    ]


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
@pytest.mark.parametrize("codec", CODECS)
def test_reads_what_clients_build(client: str, codec: int) -> None:
    data = build(client, 2, codec, RECORDS, producer_id=9, producer_epoch=1, base_sequence=5)
    header = check_produced(memoryview(b"head" + data), 4)
    assert header.codec == codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 5)
    assert (header.record_count, header.last_offset, header.last_sequence) == (200, 199, 204)
    assert header.size == len(data)
    assert header.max_timestamp == max(record.timestamp for record in RECORDS)
    assert list(iter_records(data)) == RECORDS


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
@pytest.mark.parametrize("codec", CODECS)
def test_clients_read_what_it_builds(client: str, codec: int) -> None:
    data = build_batch(RECORDS, codec=codec)
    stamp(data, 0, 1_000_000, 7)
    assert list(read(client, data)) == numbered(RECORDS, 1_000_000)
    assert check_batch(data).leader_epoch == 7


@given(records_strategy, st.sampled_from(CODECS))
def test_what_is_built_is_read(records: list[Record], codec: int) -> None:
    records = numbered(records)
    data = build_batch(records, codec=codec)
    assert list(iter_records(data)) == records
    assert list(read("kafka-python", data)) == records
    check_produced(data)


@given(records_strategy, st.sampled_from(CODECS), st.sampled_from(CODECS))
def test_recompression_keeps_the_records(records: list[Record], before: int, after: int) -> None:
    records = numbered(records)
    original = build_batch(records, codec=before, producer_id=3, producer_epoch=2, base_sequence=1)
    was = read_header(original)
    moved = recompress(was, open_block(original, 0, was), after)
    header = check_produced(moved)
    assert header.codec == after
    assert list(iter_records(moved)) == records
    assert header == was._replace(length=header.length, crc=header.crc, attributes=after)


def test_stamp_leaves_all_else_alone() -> None:
    data = build_batch(RECORDS)
    before = read_header(data)
    stamp(data, 0, 2**40, 3)
    assert check_batch(data) == before._replace(base_offset=2**40, leader_epoch=3)
    STAMP.pack_into(data, 0, 5, before.length, 4)
    assert check_batch(data) == before._replace(base_offset=5, leader_epoch=4)


def test_log_append_time_is_what_readers_see() -> None:
    data = build_batch(RECORDS)
    set_log_append_time(data, 0, 1234)
    assert check_batch(data).is_log_append_time
    assert {record.timestamp for record in iter_records(data)} == {1234}
    assert {record.timestamp for record in read("kafka-python", data)} == {1234}
    assert {record.timestamp for record in read("aiokafka", data)} == {1234}
    set_max_timestamp(data, 0, read_header(build_batch(RECORDS)).max_timestamp, log_append_time=False)
    assert data == build_batch(RECORDS)
    assert next(iter_records(build_batch(RECORDS[:1], log_append_time=5))).timestamp == 5


def test_a_batch_with_holes_keeps_its_offsets() -> None:
    kept = [RECORDS[1], RECORDS[5], RECORDS[9]]
    data = build_batch(kept, base_offset=0, last_offset=20, producer_id=1, producer_epoch=0, base_sequence=0)
    header = check_batch(data)
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 20, 3)
    assert list(iter_records(data)) == kept
    with pytest.raises(BatchError, match="3 records for 21 offsets"):
        check_produced(data)
    empty = build_batch([], base_offset=4, last_offset=9)
    assert check_batch(empty).last_offset == 9
    assert list(iter_records(empty)) == []


def test_sequences_wrap() -> None:
    data = build_batch(RECORDS[:3], producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert read_header(data).last_sequence == 0
    assert read_header(build_batch(RECORDS)).last_sequence == -1


def test_batches_in_a_row() -> None:
    first, second = build_batch(RECORDS[:2]), build_batch(RECORDS)
    stamp(second, 0, 2, 0)
    data = first + second
    found = list(iter_batches(data))
    assert [(pos, header.base_offset) for pos, header in found] == [(0, 0), (len(first), 2)]
    assert len(list(iter_batches(data[:-1]))) == 1
    assert list(iter_batches(data[:60])) == []
    assert [record.offset for record in iter_records(data, len(first))][:2] == [2, 3]


@pytest.mark.parametrize(("kind", "name"), [(COMMIT, "commit"), (ABORT, "abort")])
def test_transaction_markers(kind: int, name: str) -> None:
    data = marker_batch(kind, 77, 3, 5, 1000)
    header = check_batch(data)
    assert header.is_control
    assert header.is_transactional
    (record,) = iter_records(data)
    assert marker_kind(record) == kind, name
    assert record.key == b"\0\0\0" + bytes((kind,))
    assert record.value == b"\0\0\0\0\0\5"
    with pytest.raises(WireError):
        marker_kind(Record(0))
    with pytest.raises(BatchError, match="control records"):
        check_produced(data)


def damaged(**changes: int) -> bytearray:
    header = read_header(build_batch(RECORDS[:3]))
    return assemble(header._replace(**changes), build_batch(RECORDS[:3])[HEADER_SIZE:])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (bytes(11), ErrorCode.INVALID_RECORD),
        (bytes(12), ErrorCode.CORRUPT_MESSAGE),
        (bytes(61), ErrorCode.CORRUPT_MESSAGE),
        (build_batch(RECORDS)[:16], ErrorCode.INVALID_RECORD),
        (build_batch(RECORDS)[:60], ErrorCode.INVALID_RECORD),
        (build_batch(RECORDS)[:-1], ErrorCode.INVALID_RECORD),
        (build("kafka-python", 1, NONE, RECORDS), ErrorCode.INVALID_RECORD),
        (bytes(11) + b"\x0e" + bytes(4) + b"\x03" + bytes(50), ErrorCode.CORRUPT_MESSAGE),
        (bytes(11) + b"\x0e" + bytes(4) + b"\xff" + bytes(50), ErrorCode.CORRUPT_MESSAGE),
        (bytes(11) + b"\x0e" + bytes(4) + b"\x02" + bytes(9), ErrorCode.CORRUPT_MESSAGE),
        (build_batch(RECORDS) + b"x", ErrorCode.INVALID_RECORD),
        (build_batch(RECORDS) + build_batch(RECORDS), ErrorCode.INVALID_RECORD),
        (damaged(last_offset_delta=3), ErrorCode.INVALID_RECORD),
        (damaged(last_offset_delta=1), ErrorCode.INVALID_RECORD),
        (damaged(last_offset_delta=-1, record_count=0), ErrorCode.INVALID_RECORD),
        (damaged(record_count=-1), ErrorCode.INVALID_RECORD),
        (damaged(base_offset=1), ErrorCode.INVALID_RECORD),
        (damaged(attributes=CONTROL), ErrorCode.INVALID_RECORD),
        (damaged(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (damaged(producer_id=4), ErrorCode.INVALID_RECORD),
    ],
)
def test_what_clients_may_not_write(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(BatchError) as refusal:
        check_produced(data)
    assert refusal.value.code == code


def test_length_and_magic_are_checked_before_they_are_used() -> None:
    for length in (-(2**31), -12, -1, 0, 48, 2**31 - 1):
        data = build_batch(RECORDS[:3])
        HEADER.pack_into(data, 0, *read_header(data)._replace(length=length))
        with pytest.raises(BatchError, match="impossible length"):
            check_batch(data)
        assert list(iter_batches(data)) == []
    for magic in (-1, 0, 1, 3):
        data = build_batch(RECORDS[:3])
        HEADER.pack_into(data, 0, *read_header(data)._replace(magic=magic))
        with pytest.raises(BatchError, match="magic"):
            check_produced(data)


def test_every_flipped_bit_is_noticed() -> None:
    """Base offset and leader epoch are not covered by the CRC: a broker overwrites them."""
    random = Random(3)
    original = build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=0)
    for at in [
        *range(8, 12),
        *range(16, HEADER_SIZE),
        *random.choices(range(HEADER_SIZE, len(original)), k=50),
    ]:
        data = bytearray(original)
        data[at] ^= 1 << random.randrange(8)
        with pytest.raises(BatchError):
            check_produced(data)


def test_damaged_records_are_refused() -> None:
    """With a right CRC around them, as a broken or hostile producer would send them."""
    random = Random(4)
    original = build_batch(RECORDS[:8])
    for _ in range(2_000):
        data = bytearray(original)
        for _ in range(random.randint(1, 3)):
            data[random.randrange(HEADER_SIZE, len(data))] = random.randrange(256)
        refresh_crc(data)
        check_produced(data)
        try:
            assert len(list(iter_records(data))) == 8
        except WireError:
            continue


@given(st.binary(max_size=120), st.integers(0, 2**31 - 1))
def test_random_records_are_refused(data: bytes, count: int) -> None:
    try:
        assert sum(1 for _ in iter_raw(data, count)) == count
    except WireError:
        return


@given(st.binary(max_size=200))
def test_random_batches_are_refused(data: bytes) -> None:
    with pytest.raises(BatchError):
        check_produced(data)
    with pytest.raises(BatchError):
        check_batch(data)


def test_a_batch_that_expands_too_far() -> None:
    data = build_batch([Record(0, 0, None, bytes(5_000_000))], codec=ZSTD)
    assert len(data) < 1000
    with pytest.raises(WireError, match="expand to more than"):
        list(iter_records(data, limit=4_000_000))


def test_the_header_has_the_size_and_place_that_kafka_gives_it() -> None:
    assert HEADER.size == HEADER_SIZE
    data = build_batch(RECORDS[:1])
    assert HEADER.unpack_from(data) == tuple(BatchHeader._make(HEADER.unpack_from(data)))
    assert data[16] == 2
    assert CRC_FROM == 21
