"""Which partitions compaction is due for, and how far it may go."""

import msgspec

from penstock.log.compaction import Dirt, Replacement, assess, replaced
from penstock.log.manifest import Manifest, SegmentRef
from penstock.log.markers import AbortedTransaction
from penstock.log.policy import LogPolicy

NOW = 1_700_000_000_000
MINUTE = 60_000


def segment(base: int, end: int, *, size: int = 100, age: int = 60 * MINUTE, span: int = 0) -> SegmentRef:
    """A segment whose newest record is `age` milliseconds old, and its oldest `span` more."""
    newest = NOW - age
    return SegmentRef(f"s{base}", base, end, size, newest, f"s{base}", 0, 10, newest - span, NOW)


def dirt_of(
    *segments: SegmentRef,
    compacted_end: int = 0,
    log_start: int = 0,
    stable: int = 10**9,
    unsettled: int = 0,
    active_max: int = 1 << 30,
    policy: LogPolicy | None = None,
) -> Dirt:
    manifest = Manifest(b"t" * 16, 0, segments[-1].end_offset, segments, compacted_end=compacted_end)
    return assess(
        manifest,
        log_start=log_start,
        stable_offset=stable,
        unsettled_bytes=unsettled,
        policy=policy or LogPolicy(compact=True, segment_ms=MINUTE),
        active_bytes_max=active_max,
        now_ms=NOW,
    )


def bounds(dirt: Dirt) -> tuple[int, int, int]:
    return dirt.start, dirt.dirty, dirt.end


def test_clean_dirty_and_left_alone() -> None:
    some = [segment(at, at + 10, size=at + 1) for at in range(0, 50, 10)]
    dirt = dirt_of(*some, compacted_end=20)
    assert bounds(dirt) == (0, 2, 5)
    assert (dirt.clean_bytes, dirt.dirty_bytes) == (1 + 11, 21 + 31 + 41)
    assert dirt.ratio == 93 / 105
    assert bounds(dirt_of(*some, compacted_end=25)) == (0, 2, 5), "a segment is dirty if any of it is"
    assert bounds(dirt_of(*some, compacted_end=20, log_start=15)) == (1, 2, 5)
    assert bounds(dirt_of(*some, compacted_end=20, log_start=40)) == (4, 4, 5)
    assert bounds(dirt_of(*some, compacted_end=50)) == (0, 5, 5)


def test_the_active_part_ends_by_age() -> None:
    policy = LogPolicy(compact=True, segment_ms=10 * MINUTE)
    some = [segment(at, at + 10, age=(40 - at) * MINUTE) for at in range(0, 50, 10)]
    assert bounds(dirt_of(*some, policy=policy)) == (0, 0, 4), "10 minutes old is old enough, 0 is not"
    spanning = [*some[:3], segment(30, 50, age=0, span=10 * MINUTE)]
    assert bounds(dirt_of(*spanning, policy=policy)) == (0, 0, 4), "its oldest record decides"
    lagging = msgspec.structs.replace(policy, max_compaction_lag_ms=2 * MINUTE)
    recent = [segment(0, 10, age=3 * MINUTE), segment(10, 20, age=MINUTE)]
    assert bounds(dirt_of(*recent, policy=policy)) == (0, 0, 0)
    assert bounds(dirt_of(*recent, policy=lagging)) == (0, 0, 1), "the greatest lag closes segments earlier"


def test_the_active_part_ends_by_size() -> None:
    policy = LogPolicy(compact=True, segment_bytes=250)
    some = [segment(at, at + 10, age=0) for at in range(0, 50, 10)]
    assert bounds(dirt_of(*some, policy=policy)) == (0, 0, 3), "the newest 200 of 500 bytes are active"
    assert bounds(dirt_of(*some, policy=policy, unsettled=100)) == (0, 0, 4)
    assert bounds(dirt_of(*some, policy=policy, unsettled=200)) == (0, 0, 5)
    large = LogPolicy(compact=True, segment_bytes=1 << 30)
    assert bounds(dirt_of(*some, policy=large)) == (0, 0, 0)
    assert bounds(dirt_of(*some, policy=large, active_max=250)) == (0, 0, 3)


def test_young_records_and_open_transactions_are_left_alone() -> None:
    policy = LogPolicy(compact=True, segment_ms=MINUTE, min_compaction_lag_ms=25 * MINUTE)
    some = [segment(at, at + 10, age=(50 - at) * MINUTE) for at in range(0, 50, 10)]
    assert bounds(dirt_of(*some, policy=policy)) == (0, 0, 3)
    assert bounds(dirt_of(*some, stable=20)) == (0, 0, 2)
    assert bounds(dirt_of(*some, stable=19)) == (0, 0, 1), "only whole segments"
    assert bounds(dirt_of(*some, stable=0)) == (0, 0, 0)
    assert bounds(dirt_of(*some, stable=0, compacted_end=30)) == (0, 3, 3)
    out_of_order = [segment(0, 10, age=30 * MINUTE), segment(10, 20, age=MINUTE), segment(20, 30)]
    assert bounds(dirt_of(*out_of_order, policy=policy)) == (0, 0, 1), "up to the first young one"


def test_records_without_a_time_are_as_old_as_their_segment() -> None:
    timeless = SegmentRef("s", 0, 10, 100, -1, "s", 0, 10, -1, NOW - 2 * MINUTE)
    assert bounds(dirt_of(timeless)) == (0, 0, 1)
    assert bounds(dirt_of(msgspec.structs.replace(timeless, settled_ms=NOW))) == (0, 0, 0)
    from_the_future = msgspec.structs.replace(timeless, min_timestamp=NOW + 60 * MINUTE)
    assert bounds(dirt_of(from_the_future)) == (0, 0, 1), "it was there two minutes ago"


def test_due_by_ratio_or_by_lag() -> None:
    half = LogPolicy(compact=True, min_cleanable_ratio=0.5)
    assert not Dirt(0, 1, 2, 100, 100, False).is_due(half), "exactly the ratio is not enough, as in Kafka"
    assert Dirt(0, 1, 2, 100, 101, False).is_due(half)
    assert Dirt(0, 1, 2, 1000, 1, True).is_due(half)
    assert not Dirt(0, 1, 1, 1000, 0, True).is_due(half)
    always = LogPolicy(compact=True, min_cleanable_ratio=0.0)
    assert Dirt(0, 1, 2, 1000, 1, False).is_due(always)
    assert not Dirt(0, 1, 1, 1000, 0, False).is_due(always)


def test_overdue_once_a_dirty_record_is_older_than_the_greatest_lag() -> None:
    policy = LogPolicy(compact=True, max_compaction_lag_ms=10 * MINUTE)
    fresh, old = segment(10, 20, age=9 * MINUTE), segment(10, 20, age=9 * MINUTE, span=2 * MINUTE)
    clean = segment(0, 10, age=90 * MINUTE)
    assert not dirt_of(clean, fresh, compacted_end=10, policy=policy).overdue
    assert dirt_of(clean, old, compacted_end=10, policy=policy).overdue


def test_replacements_are_laid_over_the_present_manifest() -> None:
    a, b, c, d = (segment(at, at + 10) for at in range(0, 40, 10))
    ab, bc = segment(0, 15), segment(12, 28)
    gone = AbortedTransaction(1, 0, 5, 6)
    stays = AbortedTransaction(2, 7, 9, 10)
    manifest = Manifest(b"t" * 16, 3, 40, (a, b, c, d), aborted=(gone, stays), compacted_end=5)
    made = replaced(manifest, [Replacement((a, b), (ab,)), Replacement((), (), 20, (gone,))])
    assert made is not None
    assert made.segments == (ab, c, d) and made.compacted_end == 20 and made.aborted == (stays,)
    assert (made.topic_id, made.partition, made.end_offset) == (b"t" * 16, 3, 40)
    emptied = replaced(manifest, [Replacement((b, c), ())])
    assert emptied is not None and emptied.segments == (a, d) and emptied.compacted_end == 5
    grown = msgspec.structs.replace(manifest, segments=(a, b, c, d, segment(40, 50)), end_offset=50)
    settled_meanwhile = replaced(grown, [Replacement((b, c), (bc,))])
    assert settled_meanwhile is not None and len(settled_meanwhile.segments) == 4
    merged = msgspec.structs.replace(manifest, segments=(a, segment(10, 30), d))
    assert replaced(merged, [Replacement((b, c), (bc,))]) is None
    retained = msgspec.structs.replace(manifest, segments=(c, d))
    assert replaced(retained, [Replacement((b, c), (bc,))]) is None
    assert replaced(retained, [Replacement((c,), ())]) is not None
