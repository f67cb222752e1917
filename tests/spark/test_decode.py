"""The decoder against the wire room's own reader of record batches: the same records, or a clear refusal."""

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.arrow import memory
from penstock.arrow.columns import COLUMNS
from penstock.arrow.decode import AbortedRange, Decoder
from penstock.arrow.errors import CorruptLogError
from penstock.wire.batch import HEADER_SIZE, Record, build_batch, iter_records, read_header, refresh_crc
from penstock.wire.errors import WireError

ALL = tuple(COLUMNS)
TIME = 1_700_000_000_000

values = st.none() | st.binary(max_size=60)
names = st.sampled_from(("", "a", "trace", "größe", "名", "x" * 70))
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=20)), max_size=4).map(tuple)


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Batches one after the other, as a partition has them: in all codecs, with gaps."""
    offset = draw(st.integers(0, 2**40))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        records = []
        for _ in range(draw(st.integers(1, 5))):
            offset += draw(st.sampled_from((0, 0, 0, 1, 7)))
            time = draw(st.integers(-1, 2**45))
            records.append(Record(offset, time, draw(values), draw(values), draw(headers)))
            offset += 1
        codec = draw(st.integers(0, 4))
        append_time = draw(st.none() | st.integers(0, 2**42))
        found.append(bytes(build_batch(records, codec=codec, log_append_time=append_time)))
    return found


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    """Timestamps as microseconds: some lie beyond what Python's dates can say."""
    found = []
    for batch in batches:
        at = batch.schema.get_field_index("timestamp")
        plain = batch if at < 0 else batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))
        found += plain.to_pylist()
    return found


def expected(run: Sequence[bytes], columns: Sequence[str] = ALL) -> list[dict[str, object]]:
    found = []
    for batch in run:
        append_time = bool(batch[22] & 8)
        for record in iter_records(batch):
            row: dict[str, object] = {
                "key": record.key,
                "value": record.value,
                "topic": "events",
                "partition": 3,
                "offset": record.offset,
                "timestamp": record.timestamp * 1000,
                "timestampType": int(append_time),
                "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
            }
            found.append({name: row[name] for name in columns})
    return found


def decode(run: bytes, columns: Sequence[str] = ALL, **options: object) -> list[dict[str, object]]:
    decoder = Decoder("events", 3, columns, **options)  # type: ignore[arg-type]
    return rows_of([*decoder.decode(run), *decoder.finish()])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(batches())
def test_records_come_out_as_they_went_in(run: list[bytes]) -> None:
    assert decode(b"".join(run)) == expected(run)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(batches(), st.sets(st.sampled_from(ALL), min_size=1))
def test_any_choice_of_columns(run: list[bytes], chosen: set[str]) -> None:
    columns = [name for name in ALL if name in chosen]
    assert decode(b"".join(run), columns) == expected(run, columns)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(batches(), st.data())
def test_only_the_range_asked_for(run: list[bytes], data: st.DataObject) -> None:
    rows = expected(run)
    offsets = [int(str(row["offset"])) for row in rows]
    low = data.draw(st.integers(offsets[0] - 2, offsets[-1] + 2))
    high = data.draw(st.integers(low, offsets[-1] + 3))
    wanted = [row for row, offset in zip(rows, offsets, strict=True) if low <= offset < high]
    assert decode(b"".join(run), low=low, high=high) == wanted
    columns = ("offset", "timestampType")
    told_by_headers = [{name: row[name] for name in columns} for row in wanted]
    assert decode(b"".join(run), columns, low=low, high=high) == told_by_headers


@settings(max_examples=40, deadline=None, derandomize=True)
@given(batches(), st.data())
def test_batches_that_lie_apart(run: list[bytes], data: st.DataObject) -> None:
    window = b""
    pieces = []
    for batch in run:
        window += data.draw(st.binary(max_size=100))
        pieces.append((len(window), len(batch)))
        window += batch
    decoder = Decoder("events", 3, ALL)
    assert rows_of([*decoder.decode(window, decoder.scan(window, pieces)), *decoder.finish()]) == expected(
        run
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(batches(), st.data())
def test_batches_that_come_one_after_the_other(run: list[bytes], data: st.DataObject) -> None:
    """As a task feeds them: the range that is wanted moves on with what was taken."""
    decoder = Decoder("events", 3, ALL)
    found: list[pa.RecordBatch] = []
    for batch in run:
        found += decoder.decode(batch)
        decoder.low = read_header(batch).last_offset + 1
        if data.draw(st.booleans()):
            found += decoder.finish()
    assert rows_of([*found, *decoder.finish()]) == expected(run)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(batches(), st.data())
def test_lies_are_refused_or_do_no_harm(run: list[bytes], data: st.DataObject) -> None:
    """Any bytes of a batch changed, and its CRC made right again: what a malicious client can have stored.

    Either the batch is refused with a sentence that says where, or the wire room reads the same from it.
    """
    at = data.draw(st.integers(0, len(run) - 1))
    batch = bytearray(run[at])
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(21, len(batch) - 1))
        batch[where] = data.draw(st.integers(0, 255))
    refresh_crc(batch)
    lying = [*run[:at], bytes(batch), *run[at + 1 :]]
    try:
        found = decode(b"".join(lying))
    except CorruptLogError as error:
        assert "topic 'events' partition 3 holds" in str(error).lower()
        return
    kept = [one for one in lying if not one[22] & 0x20]
    try:
        wanted = expected(kept)
    except WireError as error:
        # The wire room refuses header names that are no text, which are shown as Java shows them here.
        assert "UTF-8" in str(error)
        return
    assert found == wanted


@settings(max_examples=100, deadline=None, derandomize=True)
@given(batches(), st.data())
def test_damage_is_found_by_the_checksum(run: list[bytes], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(run) - 1))
    batch = bytearray(run[at])
    # Base offset and leader epoch are the broker's, and not covered.
    where = data.draw(st.integers(8, 11) | st.integers(16, len(batch) - 1))
    batch[where] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptLogError):
        decode(b"".join((*run[:at], bytes(batch), *run[at + 1 :])))


@pytest.mark.parametrize("count", [0, 2, 2**31 - 1])
def test_a_count_that_does_not_match(count: int) -> None:
    batch = build_batch([Record(0, TIME, b"k", b"v")])
    struct.pack_into(">i", batch, 23, 2**31 - 1)
    struct.pack_into(">i", batch, 57, count)
    refresh_crc(batch)
    with pytest.raises(CorruptLogError, match=r"record count that does not match .* offset 0"):
        decode(bytes(batch))


def test_a_batch_that_is_cut_short() -> None:
    run = bytes(build_batch([Record(7, TIME, None, b"x" * 50)]))
    for end in range(1, len(run)):
        with pytest.raises(CorruptLogError, match=r"cut short|does not fit|magic"):
            decode(run[:end])


def test_an_unknown_codec() -> None:
    batch = build_batch([Record(0, TIME, b"k", b"v")])
    batch[22] |= 7
    refresh_crc(batch)
    with pytest.raises(CorruptLogError, match="does not decompress"):
        decode(bytes(batch))


def test_offsets_do_not_need_what_is_compressed() -> None:
    batch = build_batch([Record(at, TIME, b"k", b"v" * 50) for at in range(5, 15)], codec=4)
    batch[HEADER_SIZE:] = bytes(len(batch) - HEADER_SIZE)
    refresh_crc(batch)
    assert [row["offset"] for row in decode(bytes(batch), ["offset"], low=7)] == list(range(7, 15))
    with pytest.raises(CorruptLogError, match="does not decompress"):
        decode(bytes(batch), ["offset", "value"])
    gap = build_batch([Record(at, TIME, b"k", b"v") for at in (5, 7)], codec=4)
    assert [row["offset"] for row in decode(bytes(gap), ["offset"])] == [5, 7]
    struct.pack_into(">ii", gap, 23, 2**31 - 2, 0)
    struct.pack_into(">i", gap, 57, 2**31 - 1)
    refresh_crc(gap)
    with pytest.raises(CorruptLogError):
        decode(bytes(gap), ["offset"])


def test_a_block_that_expands_beyond_reason() -> None:
    import cramjam

    batch = build_batch([Record(0, TIME, b"k", b"v")], codec=4)
    block = bytes(cramjam.zstd.compress(bytes(1 << 26)))
    lying = bytearray(batch[:HEADER_SIZE]) + block
    struct.pack_into(">i", lying, 8, len(lying) - 12)
    refresh_crc(lying)
    with pytest.raises(CorruptLogError):
        decode(bytes(lying))


def test_control_batches_and_aborted_transactions_are_left_out() -> None:
    def batch(offset: int, producer: int, **options: bool) -> bytes:
        record = Record(offset, TIME, b"%d" % producer, b"%d" % offset)
        return bytes(
            build_batch([record], producer_id=producer, producer_epoch=0, base_sequence=0, **options)
        )

    run = [
        batch(0, 5, transactional=True),
        batch(1, 6, transactional=True),
        batch(2, 5, transactional=True, control=True),
        batch(3, 6, transactional=True, control=True),
        batch(4, 5, transactional=True),
        batch(5, 5),
    ]
    aborted = [AbortedRange(5, 0, 2)]
    assert [row["offset"] for row in decode(b"".join(run), aborted=aborted)] == [1, 4, 5]
    assert [row["offset"] for row in decode(b"".join(run))] == [0, 1, 4, 5]


def test_header_names_that_are_no_text_are_shown_as_java_shows_them() -> None:
    record = Record(0, TIME, None, b"v", (("name", b"1"), ("good", b"2")))
    batch = build_batch([record])
    at = batch.index(b"name")
    batch[at : at + 4] = b"n\xff\xfee"
    refresh_crc(batch)
    (row,) = decode(bytes(batch))
    assert row["headers"] == [{"key": "n��e", "value": b"1"}, {"key": "good", "value": b"2"}]


def test_arrow_batches_have_a_bounded_size() -> None:
    records = [Record(at, TIME, None, b"x" * 1000) for at in range(100)]
    run = b"".join(bytes(build_batch(records, base_offset=0)) for _ in range(200))
    decoder = Decoder("events", 0, ["value"])
    found = [*decoder.decode(run), *decoder.finish()]
    assert sum(batch.num_rows for batch in found) == 20_000
    assert max(batch.nbytes for batch in found) < 8 * 1024 * 1024
    assert len(found) <= 8


def test_what_was_given_stays_as_it_was_while_more_is_decoded() -> None:
    """Memory is used again only when nothing refers to it: no batch, no slice, no column."""
    runs = [
        bytes(build_batch([Record(at, TIME, b"k", bytes([seed]) * 40_000) for at in range(60)]))
        for seed in range(40)
    ]
    decoder = Decoder("events", 0, ["key", "value", "offset"])
    kept: list[tuple[int, pa.Array]] = []
    for seed, run in enumerate(runs):
        # The window's own memory goes back at once; the rows must not lie in it.
        window = memory.room(len(run))
        window[:] = run
        for batch in (*decoder.decode(window), *decoder.finish()):
            match seed % 4:
                case 0:
                    kept.append((seed, batch.column(1)))
                case 1:
                    kept.append((seed, batch.slice(50, 10).column(1)))
                case 2:
                    kept.append((seed, pa.Table.from_batches([batch]).column("value").chunk(0)))
    assert len(kept) == 30
    for seed, values in kept:
        assert set(values.to_pylist()) == {bytes([seed]) * 40_000}


def test_windows_that_wait_for_more_rows_are_bounded() -> None:
    run = bytes(build_batch([Record(0, TIME, None, bytes(1 << 20))]))
    decoder = Decoder("events", 0, ["offset"])
    window = run * 8
    found = [batch for at in range(20) for batch in decoder.decode(window)]
    assert len(found) >= 3


def test_one_batch_with_far_too_much_in_it_is_given_in_pieces() -> None:
    records = [Record(at, TIME, None, bytes(1000)) for at in range(40_000)]
    run = bytes(build_batch(records, codec=4))
    assert len(run) < 1_000_000
    decoder = Decoder("events", 0, ["offset", "value"])
    found = [*decoder.decode(run), *decoder.finish()]
    assert len(found) > 2
    assert [offset for batch in found for offset in batch.column(0).to_pylist()] == list(range(40_000))
