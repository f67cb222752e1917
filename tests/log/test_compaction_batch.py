"""What compaction leaves of batches: Kafka's rules, one by one."""

import random
import tracemalloc
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from penstock.log.compaction_batch import BatchSweep, KeyScan, LastOf, Outcome, last_batches, place
from penstock.log.compaction_keys import (
    ENTRY_BYTES,
    KEY_BYTES_MAX,
    LatestOffsets,
    OffsetMarks,
    kept_records,
    keys_of,
    map_key,
)
from penstock.log.extents import EXTENT_BYTES, Extents
from penstock.log.markers import AbortedTransaction
from penstock.log.producers import ProducerEntry, SequencedBatch
from penstock.wire.batch import (
    DELETE_HORIZON,
    HEADER_SIZE,
    BatchHeader,
    Record,
    build_batch,
    check_batch,
    iter_records,
    read_header,
    records_block,
    stamp,
)
from penstock.wire.errors import WireError
from penstock.wire.markers import ABORT, COMMIT, marker_batch

NOW = 1_700_000_000_000
DAY = 86_400_000


def batch(base: int, *pairs: tuple[str | None, str | None], time: int = NOW, **options: Any) -> bytearray:
    """A batch as it is stored: keys and values, the first record at offset `base`."""
    records = [
        Record(base + at, time + at, key.encode() if key is not None else None,
               value.encode() if value is not None else None)
        for at, (key, value) in enumerate(pairs)
    ]  # fmt: skip
    return build_batch(records, leader_epoch=3, **options)


def marker(base: int, kind: int, producer: int, epoch: int = 0) -> bytearray:
    made = marker_batch(kind, producer, epoch, 7, NOW)
    stamp(made, 0, base, 3)
    return made


class Left(NamedTuple):
    """A batch after compaction."""

    header: BatchHeader
    records: list[Record]
    stored: bytes
    changed: bool

    @property
    def pairs(self) -> list[tuple[int, str | None, str | None]]:
        return [(r.offset, _text(r.key), _text(r.value)) for r in self.records]


def _text(value: bytes | None) -> str | None:
    return value.decode() if value is not None else None


class Cleaned(NamedTuple):
    left: list[Left]
    forgotten: list[AbortedTransaction]

    @property
    def pairs(self) -> list[tuple[int, str | None, str | None]]:
        return [pair for one in self.left for pair in one.pairs]

    @property
    def log(self) -> list[bytes]:
        return [one.stored for one in self.left]


def clean(
    log: Sequence[bytes | bytearray],
    *,
    dirty: int = 0,
    start: int = 0,
    end: int | None = None,
    now: int = NOW,
    retention: int = DAY,
    aborted: Sequence[AbortedTransaction] = (),
    producers: dict[int, LastOf] | None = None,
    keys_bytes_max: int = 1 << 20,
) -> Cleaned:
    """Both passes over a log, dirty from offset `dirty` on."""
    batches = [(memoryview(bytes(one)), read_header(one)) for one in log]
    producers = producers or {}
    end = batches[-1][1].last_offset + 1 if end is None else end
    scan = KeyScan(LatestOffsets(keys_bytes_max), aborted)
    for view, header in batches:
        if dirty <= header.base_offset < end:
            scan.see(view, header)
    sweep = BatchSweep(
        scan,
        scan.marks(dirty, end, producers),
        log_start=start,
        dirty_offset=dirty,
        end_offset=end,
        aborted=aborted,
        producers=producers,
        now_ms=now,
        delete_retention_ms=retention,
    )
    left = []
    for view, header in batches:
        if header.base_offset >= end:
            left.append(Left(header, list(iter_records(view)), bytes(view), False))
            continue
        outcome = sweep.judge(view, header)
        if outcome.batch is None:
            assert outcome.changed
            continue
        stored = bytes(outcome.batch)
        assert outcome.changed == (stored != bytes(view))
        after = check_batch(stored)
        assert (after.base_offset, after.last_offset) == (header.base_offset, header.last_offset)
        assert after[9:12] == header[9:12], "producer id, epoch and sequence"
        assert after.leader_epoch == header.leader_epoch
        records = list(iter_records(stored))
        assert len(records) == after.record_count
        if records:
            assert outcome.max_timestamp == after.max_timestamp == max(r.timestamp for r in records)
        else:
            assert outcome.max_timestamp == -1
        left.append(Left(after, records, stored, outcome.changed))
    return Cleaned(left, sweep.forgotten)


def test_the_last_record_of_each_key_stays_where_it_was() -> None:
    log = [
        batch(0, ("a", "1"), ("b", "1")),
        batch(2, ("a", "2"), ("c", "1"), ("c", "2")),
        batch(5, ("a", "3"), ("d", "1")),
    ]
    assert clean(log).pairs == [(1, "b", "1"), (4, "c", "2"), (5, "a", "3"), (6, "d", "1")]
    again = clean(clean(log).log, dirty=7, end=7)
    assert not any(one.changed for one in again.left)


def test_clean_records_give_way_to_dirty_ones_only() -> None:
    log = [batch(0, ("a", "1"), ("b", "1")), batch(2, ("b", "2")), batch(3, ("b", "3"), ("c", "1"))]
    assert clean(log, dirty=3).pairs == [(0, "a", "1"), (3, "b", "3"), (4, "c", "1")]
    assert clean(log, dirty=2, end=3).pairs == [(0, "a", "1"), (2, "b", "2"), (3, "b", "3"), (4, "c", "1")]


def test_what_is_not_touched_keeps_its_very_bytes() -> None:
    log = [batch(0, ("a", "1"), ("b", "1"), codec=codec) for codec in range(5)]
    for at, one in enumerate(log):
        stamp(one, 0, 2 * at, 3)
    result = clean(log)
    assert [one.stored for one in result.left] == [bytes(log[-1])]


@pytest.mark.parametrize("codec", range(5))
def test_codec_headers_and_times_stay(codec: int) -> None:
    headers = (("h", b"1"), ("h", None), ("", b""))
    records = [
        Record(10, NOW + 5, b"a", b"x" * 500, headers),
        Record(11, NOW - 70_000, b"b", b"y" * 500, headers),
        Record(12, NOW + 90_000, b"a", b"z" * 500),
        Record(13, NOW + 1, b"t", None, headers),
    ]
    log = [build_batch(records, codec=codec, producer_id=4, producer_epoch=2, base_sequence=17)]
    (left,) = clean(log).left
    assert left.records == records[1:]
    assert left.header.codec == codec and left.header.max_timestamp == NOW + 90_000
    assert left.header.base_timestamp == NOW + DAY, "there is a tombstone, so the horizon is set"
    del records[3]
    (left,) = clean([build_batch(records, codec=codec, last_offset=20)]).left
    assert left.records == records[1:] and left.header.last_offset == 20
    assert not left.header.attributes & DELETE_HORIZON


def test_log_append_time_stays() -> None:
    log = [batch(0, ("a", "1"), ("b", "1"), ("a", None), log_append_time=NOW + 77)]
    (left,) = clean(log).left
    assert left.header.is_log_append_time and left.header.max_timestamp == NOW + 77
    assert {record.timestamp for record in left.records} == {NOW + 77}


def test_the_last_record_decides_on_the_greatest_time() -> None:
    log = [batch(0, ("a", "1"), ("b", "1"), time=NOW + 1000), batch(2, ("b", "2"))]
    left = clean(log).left
    assert [one.header.max_timestamp for one in left] == [NOW + 1000, NOW]


def test_records_without_a_key_go() -> None:
    assert clean([batch(0, (None, "x"), ("a", "1"), (None, None))]).pairs == [(1, "a", "1")]


def test_tombstones_stay_until_their_horizon() -> None:
    log = [batch(0, ("a", "1"), ("b", "1")), batch(2, ("a", None), ("c", "1")), batch(4, ("d", "1"))]
    first = clean(log, retention=1000)
    assert first.pairs == [(1, "b", "1"), (2, "a", None), (3, "c", "1"), (4, "d", "1")]
    header = first.left[1].header
    assert header.attributes & DELETE_HORIZON and header.base_timestamp == NOW + 1000
    assert not first.left[0].header.attributes & DELETE_HORIZON
    assert [r.timestamp for r in first.left[1].records] == [NOW, NOW + 1]
    # Until the horizon the tombstone stays, and the horizon with it, whatever the setting is by then.
    more = batch(5, ("c", "2"))
    second = clean([*first.log, more], dirty=5, now=NOW + 999, retention=5)
    assert (2, "a", None) in second.pairs and (3, "c", "1") not in second.pairs
    assert second.left[1].header.base_timestamp == NOW + 1000
    assert second.left[1].records[0].timestamp == NOW
    third = clean([*second.log, batch(6, ("e", "1"))], dirty=6, now=NOW + 1000)
    assert third.pairs == [(1, "b", "1"), (4, "d", "1"), (5, "c", "2"), (6, "e", "1")]


def test_tombstones_and_markers_may_stay_without_end() -> None:
    log = [batch(0, ("a", None), ("b", None)), batch(2, ("a", "1"))]
    result = clean(log, retention=2**63 - 1)
    assert result.pairs == [(1, "b", None), (2, "a", "1")]
    assert result.left[0].records[0].timestamp == NOW + 1
    again = clean([*result.log, batch(3, ("c", "1"))], dirty=3, now=2**53)
    assert again.pairs == [(1, "b", None), (2, "a", "1"), (3, "c", "1")]


def test_a_tombstone_that_is_replaced_goes_at_once() -> None:
    log = [batch(0, ("a", None)), batch(1, ("a", "2"))]
    assert clean(log).pairs == [(1, "a", "2")]


def test_a_tombstone_removes_what_came_before_it_even_when_it_goes_itself() -> None:
    tombstone = clean([batch(1, ("a", None))], retention=0, dirty=1).log
    result = clean([batch(0, ("a", "1")), *tombstone, batch(2, ("z", "1"))], dirty=1, now=NOW + 1)
    assert result.pairs == [(2, "z", "1")]


def test_the_last_batch_of_a_producer_and_of_the_part_stay_without_records() -> None:
    log = [
        batch(0, ("a", "1"), producer_id=1, producer_epoch=0, base_sequence=0),
        batch(1, ("a", "2"), producer_id=1, producer_epoch=0, base_sequence=1, codec=4),
        batch(2, ("a", "3"), producer_id=2, producer_epoch=0, base_sequence=0),
        batch(3, ("a", "4"), ("b", "1")),
        batch(5, ("a", "5")),
        batch(6, ("a", "6")),
    ]
    producers = {1: LastOf(1, 0), 2: LastOf(99, 0)}
    result = clean(log, end=6, producers=producers)
    assert [one.header.base_offset for one in result.left] == [1, 3, 5, 6]
    empty = result.left[0]
    assert empty.records == [] and len(empty.stored) == HEADER_SIZE
    assert empty.header.last_sequence == 1 and empty.header.codec == 0
    assert empty.header.max_timestamp == NOW and empty.header.base_timestamp == -1
    # An empty batch that nothing needs any more goes.
    again = clean([*result.log[:3], batch(6, ("z", "1"))], dirty=6)
    assert [one.header.base_offset for one in again.left] == [3, 5, 6]
    kept = clean([*result.log[:3], batch(6, ("z", "1"))], dirty=6, producers=producers)
    assert kept.log[:3] == result.log[:3]


def test_the_end_of_the_part_is_reached_also_where_nothing_is_left() -> None:
    log = [batch(0, ("a", "1")), batch(1, ("a", "2")), batch(2, ("a", "3")), batch(3, ("a", "4"))]
    scanned = clean(log, end=4)
    assert [one.header.base_offset for one in scanned.left] == [3]
    tombstone = clean([batch(2, ("b", None))], dirty=2, retention=0).log
    gone = clean([*log[:2], *tombstone], now=NOW + 1)
    assert gone.left[-1].records == [] and gone.left[-1].header.last_offset == 2


def test_what_lies_below_the_log_start_goes() -> None:
    log = [batch(0, ("a", "1")), batch(1, ("b", "1"), ("c", "1")), batch(3, ("d", "1"))]
    assert clean(log, start=1).pairs == [(1, "b", "1"), (2, "c", "1"), (3, "d", "1")]
    assert clean(log, start=2).pairs == [(1, "b", "1"), (2, "c", "1"), (3, "d", "1")], "batches are whole"
    assert clean(log, start=3).pairs == [(3, "d", "1")]


# Transactions.


def transactional(base: int, producer: int, *pairs: tuple[str, str | None]) -> bytearray:
    return batch(base, *pairs, producer_id=producer, producer_epoch=0, base_sequence=base, transactional=True)


def test_aborted_records_go_and_supersede_nothing() -> None:
    log = [
        batch(0, ("a", "1"), ("b", "1")),
        transactional(2, 1, ("a", "aborted")),
        transactional(3, 2, ("b", "committed")),
        marker(4, ABORT, 1),
        marker(5, COMMIT, 2),
        transactional(6, 1, ("a", "later")),
        marker(7, COMMIT, 1),
        batch(8, ("z", "1")),
    ]
    aborted = [AbortedTransaction(1, 2, 4, 3)]
    first = clean(log, aborted=aborted)
    data = [pair for one in first.left if not one.header.is_control for pair in one.pairs]
    assert data == [(3, "b", "committed"), (6, "a", "later"), (8, "z", "1")]
    assert [one.header.base_offset for one in first.left if one.header.is_control] == [4, 5, 7]
    assert first.forgotten == []
    assert not any(one.header.attributes & DELETE_HORIZON for one in first.left), "batches were there"
    # Next time no batch of the aborted transaction is there: its marker gets a horizon.
    second = clean([*first.log, batch(9, ("y", "1"))], dirty=9, aborted=aborted, retention=1000)
    markers = {one.header.base_offset: one for one in second.left if one.header.is_control}
    assert set(markers) == {4, 5, 7} and second.forgotten == aborted
    assert markers[4].header.attributes & DELETE_HORIZON
    assert markers[4].header.base_timestamp == NOW + 1000 and markers[4].records[0].timestamp == NOW
    assert not markers[5].header.attributes & DELETE_HORIZON, "a committed record is still there"
    later = clean([*second.log, batch(10, ("x", "1"))], dirty=10, now=NOW + 999)
    assert 4 in [one.header.base_offset for one in later.left]
    last = clean([*later.log, batch(11, ("w", "1"))], dirty=11, now=NOW + 1000)
    assert 4 not in [one.header.base_offset for one in last.left]
    assert {5, 7} < {one.header.base_offset for one in last.left}


def test_the_marker_of_a_committed_transaction_goes_after_its_records() -> None:
    log = [transactional(0, 1, ("a", "1")), marker(1, COMMIT, 1), batch(2, ("a", "2"))]
    first = clean(log)
    assert [one.header.base_offset for one in first.left] == [1, 2]
    second = clean([*first.log, batch(3, ("b", "1"))], dirty=3, retention=0)
    assert second.left[0].header.attributes & DELETE_HORIZON
    third = clean([*second.log, batch(4, ("c", "1"))], dirty=4)
    assert [one.header.base_offset for one in third.left] == [2, 3, 4]


def test_a_marker_stays_without_record_where_the_producer_epoch_hangs_on_it() -> None:
    log = [marker(0, COMMIT, 1, epoch=5), marker(1, COMMIT, 2, epoch=5), batch(2, ("a", "1"))]
    producers = {1: LastOf(-1, 5), 2: LastOf(-1, 6)}
    first = clean(log, retention=0, producers=producers)
    assert all(one.header.attributes & DELETE_HORIZON for one in first.left[:2])
    second = clean([*first.log, batch(3, ("b", "1"))], dirty=3, producers=producers)
    assert [one.header.base_offset for one in second.left] == [0, 2, 3]
    left = second.left[0]
    assert left.records == [] and left.header.is_control and left.header.producer_epoch == 5
    third = clean([*second.log, batch(4, ("c", "1"))], dirty=4)
    assert [one.header.base_offset for one in third.left] == [2, 3, 4]


def test_unknown_control_records_stay() -> None:
    key = b"\0\0\0\x09"
    control = build_batch([Record(0, NOW, key, b"?")], leader_epoch=3, producer_id=1, control=True)
    result = clean([control, batch(1, ("a", "1"))], retention=0)
    assert result.log[0] == bytes(control)


# Batches that cannot be read.


def test_a_damaged_batch_is_left_as_it_is() -> None:
    damaged = batch(1, ("a", "2"), ("c", "1"))
    damaged[-5] ^= 1
    log = [batch(0, ("a", "1")), damaged, batch(3, ("c", "3"))]
    for dirty in (0, 3):
        batches = [memoryview(bytes(one)) for one in log]
        scan = KeyScan(LatestOffsets(1 << 20), ())
        for view in batches[dirty and 2 :]:
            scan.see(view, read_header(view))
        sweep = BatchSweep(
            scan,
            scan.marks(dirty, 4, {}),
            log_start=0,
            dirty_offset=dirty,
            end_offset=4,
            aborted=(),
            producers={},
            now_ms=NOW,
            delete_retention_ms=0,
        )
        outcomes = [sweep.judge(view, read_header(view)) for view in batches]
        assert [outcome.batch is not None for outcome in outcomes] == [True, True, True]
        assert not any(outcome.changed for outcome in outcomes)


def test_offsets_that_do_not_rise_are_not_trusted() -> None:
    good = [Record(0, NOW, b"a", b"1"), Record(1, NOW, b"b", b"1")]
    block = records_block(build_batch(good), 0, read_header(build_batch(good)))
    assert keys_of(block, 2, 100, 1) == {b"a": 100, b"b": 101}
    twice = build_batch([good[0]], base_offset=0)
    doubled = 2 * records_block(twice, 0, read_header(twice))
    with pytest.raises(WireError):
        keys_of(doubled, 2, 100, 1)
    with pytest.raises(WireError):
        keys_of(block, 2, 100, 0)


def test_no_bytes_confuse_the_walk() -> None:
    chance = random.Random(7)
    records = [
        Record(at, NOW + chance.randrange(-(10**9), 10**9), chance.randbytes(chance.randrange(80)),
               chance.randbytes(chance.randrange(200)) if chance.random() < 0.8 else None,
               (("h", b"v"),) * chance.randrange(3))
        for at in range(200)
    ]  # fmt: skip
    whole = build_batch(records)
    block = records_block(whole, 0, read_header(whole))
    expected = {map_key(r.key): r.offset for r in records if r.key is not None}
    assert keys_of(block, 200, 0, 199) == expected
    slices, tombstones = kept_records(block, 200, 0, {}, True)
    assert tombstones and b"".join(block[start:end] for start, end in slices) == block
    for _ in range(500):
        broken = bytearray(block[: chance.randrange(400)])
        if broken:
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        for count in (1, 3, 10):
            try:
                keys_of(bytes(broken), count, 0, 300)
                kept_records(bytes(broken), count, 0, {}, True)
            except WireError:
                pass


# The map.


def test_long_keys_are_told_apart_from_short_ones() -> None:
    long = b"k" * (KEY_BYTES_MAX + 1)
    assert map_key(b"k" * KEY_BYTES_MAX) == b"k" * KEY_BYTES_MAX
    assert map_key(long) != map_key(long + b"k") and len(map_key(long)) > KEY_BYTES_MAX
    log = [
        batch(0, (long.decode(), "1"), ("short", "1")),
        batch(2, (long.decode(), "2"), (long.decode() + "x", "1")),
    ]
    assert [pair[0] for pair in clean(log).pairs] == [1, 2, 3]


def test_the_map_stays_within_its_memory() -> None:
    bytes_max = 2 * 1024 * 1024
    for size in (KEY_BYTES_MAX, KEY_BYTES_MAX + 1):
        blocks = []
        for start in range(0, 15_000, 500):
            made = build_batch([Record(at, NOW, b"%0*d" % (size, start + at), b"") for at in range(500)])
            blocks.append((start, records_block(made, 0, read_header(made))))
        tracemalloc.start()
        try:
            latest = LatestOffsets(bytes_max)
            for start, block in blocks:
                if latest.full:
                    break
                latest.add(block, 500, start + 10**9, 499)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert latest.full and len(latest.offsets) - latest.entries_max < 500
        assert peak < bytes_max + 500 * ENTRY_BYTES


def test_marks_never_miss_a_wanted_offset() -> None:
    chance = random.Random(3)
    for span in (1, 50, 10_000, 1 << 26):
        wanted = sorted(chance.randrange(1000, 1000 + span) for _ in range(40))
        marks = OffsetMarks(1000, 1000 + span)
        marks.add([*wanted, 5, 10**12])
        missed = 0
        for _ in range(1000):
            base = chance.randrange(1000, 1000 + span)
            last = min(base + chance.randrange(100), 999 + span)
            if any(base <= offset <= last for offset in wanted):
                assert marks.touch(base, last)
            else:
                missed += not marks.touch(base, last)
        assert missed > 500 or span <= 10_000


def test_last_batches_of_producers() -> None:
    some = SequencedBatch(0, 4, 10, 14, NOW)
    producers = {
        1: ProducerEntry(2, (some, some._replace(last_offset=20)), NOW, NOW),
        2: ProducerEntry(3, (), NOW, NOW),
    }
    assert last_batches(producers) == {1: LastOf(20, 2), 2: LastOf(-1, 3)}


def test_extents_of_a_cleaned_segment_go_over_missing_offsets() -> None:
    log = [batch(at, (f"k{at}", "v" * 1000)) for at in range(0, 3000, 10)]
    extents = Extents()
    position = 0
    for left in clean(log).left:
        outcome = Outcome(left.stored, left.changed, left.header.max_timestamp)
        place(extents, left.header, outcome, position)
        position += len(left.stored)
    assert extents.total_bytes() == position and len(extents) <= position // (EXTENT_BYTES - 2000) + 1
    assert extents.find(0) == 0 and extents.last_offsets[-1] == 2990
    assert extents.find(2985) == len(extents) - 1
    decoded = Extents.decode(extents.moved(100).encode())
    assert decoded.positions[0] == 100 and decoded.positions[1] == extents.positions[1] + 100
