"""Message sets of magic 0 and 1, to and from record batches, with the libraries of clients."""

import struct
import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.batch import (
    NO_TIMESTAMP,
    Record,
    build_batch,
    check_produced,
    iter_records,
    set_log_append_time,
    stamp,
)
from penstock.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from penstock.wire.errors import BatchError, ErrorCode
from penstock.wire.legacy import downconvert, upconvert
from penstock.wire.markers import COMMIT, marker_batch
from tests.wire.clients import build, read

OLD_CODECS = [NONE, GZIP, SNAPPY, LZ4]
CLIENT_CASES = [
    (client, magic, codec)
    for client in ("kafka-python", "aiokafka")
    for magic in (0, 1)
    for codec in OLD_CODECS
    if (client, magic, codec) != ("aiokafka", 0, LZ4)  # which aiokafka does not do
]
RECORDS = [
    Record(0, 1_500_000_000_000, b"key", b"value"),
    Record(1, 1_500_000_000_900, None, b"no key"),
    Record(2, 1_500_000_000_100, b"tombstone", None),
    Record(3, 1_500_000_000_200, b"", b""),
    *(Record(n, 1_500_000_000_000 + n, b"k%d" % n, b"x" * n) for n in range(4, 60)),
]


def without_times(records: list[Record]) -> list[Record]:
    return [Record(record.offset, NO_TIMESTAMP, record.key, record.value) for record in records]


def moved(records: list[Record], first: int) -> list[Record]:
    return [Record(first + r.offset, r.timestamp, r.key, r.value) for r in records]


def message(
    magic: int, attributes: int, value: bytes | None, *, offset: int = 0, crc: int | None = None
) -> bytes:
    times = struct.pack(">q", 99) if magic else b""
    body = bytes((magic, attributes)) + times + struct.pack(">i", -1)
    body += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    checksum = zlib.crc32(body) if crc is None else crc
    return struct.pack(">qiI", offset, len(body) + 4, checksum) + body


@pytest.mark.parametrize(("client", "magic", "codec"), CLIENT_CASES)
def test_takes_what_old_producers_send(client: str, magic: int, codec: int) -> None:
    batch = upconvert(build(client, magic, codec, RECORDS))
    assert batch is not None
    header = check_produced(batch)
    assert header.codec == codec
    assert list(iter_records(batch)) == (RECORDS if magic else without_times(RECORDS))
    assert header.max_timestamp == (1_500_000_000_900 if magic else NO_TIMESTAMP)


@pytest.mark.parametrize(("client", "magic", "codec"), CLIENT_CASES)
def test_old_consumers_read_what_it_gives(client: str, magic: int, codec: int) -> None:
    batch = build_batch(
        [Record(r.offset, r.timestamp, r.key, r.value, (("lost", b"header"),)) for r in RECORDS], codec=codec
    )
    stamp(batch, 0, 5_000, 1)
    expected = moved(RECORDS if magic else without_times(RECORDS), 5_000)
    assert list(read(client, downconvert(batch, magic, 5_000))) == expected
    # Before the offset asked for, plain messages are left out; a compressed set is given whole.
    inside = list(read(client, downconvert(batch, magic, 5_003)))
    assert inside == (expected if codec else expected[3:])


@given(
    st.lists(
        st.builds(Record, timestamp=st.integers(0, 2**50), key=st.none() | st.binary(), value=st.binary())
    ),
    st.sampled_from([0, 1]),
    st.sampled_from(OLD_CODECS),
)
def test_down_and_up_again(records: list[Record], magic: int, codec: int) -> None:
    records = [Record(at, r.timestamp, r.key, r.value) for at, r in enumerate(records)]
    if not records:
        return
    batch = upconvert(downconvert(build_batch(records, codec=codec), magic, 0))
    assert batch is not None
    assert list(iter_records(batch)) == (records if magic else without_times(records))


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_log_append_time_survives_the_way_down(codec: int) -> None:
    batch = build_batch(RECORDS, codec=codec)
    set_log_append_time(batch, 0, 4321)
    down = downconvert(batch, 1, 0)
    assert {record.timestamp for record in read("kafka-python", down)} == {4321}
    assert {record.timestamp for record in read("aiokafka", down)} == {4321}
    again = upconvert(down)
    assert again is not None
    assert {record.timestamp for record in iter_records(again)} == {4321}


def test_several_batches_in_one_answer() -> None:
    plain, packed, marker = (
        build_batch(RECORDS[:3]),
        build_batch(RECORDS, codec=GZIP),
        marker_batch(COMMIT, 1, 0, 0, 5),
    )
    stamp(plain, 0, 10, 0)
    stamp(marker, 0, 13, 0)
    stamp(packed, 0, 14, 0)
    down = downconvert(plain + marker + packed, 1, 11)
    assert list(read("aiokafka", down)) == moved(RECORDS[:3], 10)[1:] + moved(RECORDS, 14)
    assert downconvert(marker, 1, 13) == b""


def test_holes_left_by_compaction_survive_the_way_down() -> None:
    kept = [RECORDS[2], RECORDS[5], RECORDS[30]]
    for codec in OLD_CODECS:
        down = downconvert(build_batch(kept, codec=codec, base_offset=0, last_offset=50), 1, 0)
        assert [record.offset for record in read("kafka-python", down)] == [2, 5, 30]


def test_zstd_is_not_for_old_clients() -> None:
    with pytest.raises(BatchError) as refusal:
        downconvert(build_batch(RECORDS, codec=ZSTD), 1, 0)
    assert refusal.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_record_batch_passes_as_it_is() -> None:
    batch = build_batch(RECORDS, codec=SNAPPY)
    assert upconvert(batch) == batch
    with pytest.raises(BatchError):
        upconvert(batch[:-1])


def test_a_message_cut_short_is_left_out() -> None:
    data = build("kafka-python", 1, NONE, RECORDS)
    last = len(build("kafka-python", 1, NONE, RECORDS[:-1]))
    for end in (last, last + 1, last + 20, len(data) - 1):
        batch = upconvert(data[:end])
        assert batch is not None
        assert list(iter_records(batch)) == RECORDS[:-1]
    assert upconvert(b"") is None
    assert upconvert(data[:20]) is None


def test_relative_and_absolute_offsets_of_a_wrapper_mean_nothing_here() -> None:
    """librdkafka leaves the wrapper's offset at 0, others count from somewhere."""
    for offsets in ((0, 1, 2), (7, 8, 9), (0, 0, 0)):
        inner = b"".join(message(1, 0, b"v%d" % at, offset=offset) for at, offset in enumerate(offsets))
        for outer in (0, 2, 500):
            batch = upconvert(message(1, GZIP, compress(GZIP, inner), offset=outer))
            assert batch is not None
            assert [(r.offset, r.value) for r in iter_records(batch)] == [(0, b"v0"), (1, b"v1"), (2, b"v2")]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (message(0, 0, b"v", crc=1), ErrorCode.CORRUPT_MESSAGE),
        (message(1, 0, b"v", crc=1), ErrorCode.CORRUPT_MESSAGE),
        (message(1, GZIP, compress(GZIP, message(1, 0, b"v", crc=1))), ErrorCode.CORRUPT_MESSAGE),
        (message(3, 0, b"v"), ErrorCode.CORRUPT_MESSAGE),
        (struct.pack(">qiIbb", 0, 10, 0, 0, 0) + bytes(30), ErrorCode.CORRUPT_MESSAGE),
        (struct.pack(">qiIbb", 0, -1, 0, 0, 0) + bytes(30), ErrorCode.CORRUPT_MESSAGE),
        (message(1, 0, b"v") + message(0, 0, b"v"), ErrorCode.INVALID_RECORD),
        (message(1, GZIP, None), ErrorCode.INVALID_RECORD),
        (message(1, GZIP, b"not gzip"), ErrorCode.INVALID_RECORD),
        (message(1, ZSTD, compress(ZSTD, message(1, 0, b"v"))), ErrorCode.INVALID_RECORD),
        (message(1, GZIP, compress(GZIP, b"")), ErrorCode.INVALID_RECORD),
        (message(1, GZIP, compress(GZIP, message(0, 0, b"v"))), ErrorCode.INVALID_RECORD),
        (
            message(1, GZIP, compress(GZIP, message(1, GZIP, compress(GZIP, message(1, 0, b"v"))))),
            ErrorCode.INVALID_RECORD,
        ),
        (message(1, GZIP, compress(GZIP, message(1, 0, b"v"))) * 2, ErrorCode.INVALID_RECORD),
        (
            message(1, 0, b"v") + message(1, GZIP, compress(GZIP, message(1, 0, b"v"))),
            ErrorCode.INVALID_RECORD,
        ),
        (message(1, GZIP, compress(GZIP, message(1, 0, bytes(2_000_000)))), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_what_is_refused(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(BatchError) as refusal:
        upconvert(data, limit=1_000_000)
    assert refusal.value.code == code


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_damage_is_refused(magic: int, codec: int) -> None:
    random = Random(codec)
    original = build("kafka-python", magic, codec, RECORDS[:5])
    for _ in range(200):
        data = bytearray(original[: random.randint(1, len(original))])
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            upconvert(data)
        except BatchError:
            continue


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    try:
        upconvert(data)
    except BatchError:
        return
