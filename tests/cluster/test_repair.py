"""Repairing a store: what can be healed reads as it was, what is cut leaves every other record."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from penstock.cluster.health.committing import Exchange
from penstock.cluster.health.mending import UNCLEAR
from penstock.cluster.health.repair_report import GONE, START
from penstock.log.flush import FLUSH_HEADER_SIZE, decode_flush_header
from penstock.storage.stores.objects import HurtRangeError
from penstock.wire.batch import Record, build_batch, iter_batches
from tests.spark.transactional import abort, commit, data
from tests.storage.world import read

from .ward import COMPACTED, Records, Ward

TOPICS = (("orders", 0), ("orders", 1), ("other", 0))


async def fill(ward: Ward) -> dict[tuple[str, int], Records]:
    """All that is in it."""
    await ward.fill()
    return await everything(ward)


async def everything(ward: Ward) -> dict[tuple[str, int], Records]:
    return {place: await ward.read(*place) for place in TOPICS}


async def drop_old_logs(ward: Ward) -> None:
    """As the broker does a minute after it settled."""
    for key in await ward.keys("wal/"):
        if key.endswith("/00000000000000000000") and ward.on_directory:
            await ward.open().delete(key)
        elif not ward.on_directory:
            (wal,) = (await ward.image()).wal_starts
            start = (await ward.image()).wal_starts[wal]
            if int(key.rpartition("/")[2]) < start:
                await ward.open().delete(key)


async def positions(ward: Ward, topic: str, index: int) -> tuple[str, dict[int, tuple[int, int]]]:
    """The one segment of a partition, and where its batches lie by base offset."""
    (segment,) = (await ward.manifest(topic, index)).segments
    extents = await ward.extents(segment)
    data = await ward.get(segment.key)
    found = {}
    for position, length in zip(extents.positions, extents.lengths, strict=True):
        for at, header in iter_batches(data, position, position + length):
            found[header.base_offset] = (at, header.size)
    return segment.key, found


async def test_nothing_to_do(ward: Ward) -> None:
    await fill(ward)
    report = await ward.repair()
    assert (report.steps, report.left, report.exit_code) == ([], [], 0)


async def test_a_batch_is_restored_from_a_log_under_a_running_broker(ward: Ward) -> None:
    records = await fill(ward)
    key, places = await positions(ward, "orders", 1)
    position, size = places[4]
    stored = bytearray(await ward.get(key))
    stored[position + 30 : position + size] = bytes(size - 30)
    await ward.change(key, bytes(stored))
    before = await ward.keys("segments/")
    planned = await ward.repair(apply=False)
    assert planned.exit_code == 1 and await ward.keys("segments/") == before
    (step,) = (await ward.repair()).steps
    assert (step.topic, step.partition, step.start, step.end, step.how) == ("orders", 1, 4, 6, "restored")
    assert (await ward.scrub()).exit_code == 0
    await ward.caught_up()
    assert await everything(ward) == records
    # And the leader goes on from there.
    await ward.write("orders", 1, [b"more"])
    assert await ward.ledger.settle()
    assert (await ward.read("orders", 1))[-1] == (12, b"more")
    await ward.kill()
    await ward.start()
    assert (await ward.read("orders", 1))[:-1] == records["orders", 1]
    assert (await ward.scrub()).exit_code == 0


async def test_one_flipped_bit_of_a_batch_is_corrected(ward: Ward) -> None:
    records = await fill(ward)
    await drop_old_logs(ward)
    for at, bit in ((0, 3), (9, 0), (14, 2), (16, 1), (18, 7), (23, 0), (70, 5)):
        key, places = await positions(ward, "orders", 0)
        position, _size = places[2]
        await ward.flip(key, position + at, bit)
        (step,) = (await ward.repair()).steps
        assert (step.start, step.end, step.how) == (2, 4, "corrected"), at
        assert (await ward.scrub()).exit_code == 0
        await ward.caught_up()
    assert await everything(ward) == records


async def test_what_cannot_be_healed_is_cut_only_when_told_to(ward: Ward) -> None:
    records = await fill(ward)
    await drop_old_logs(ward)
    key, places = await positions(ward, "orders", 0)
    for base in (0, 6, 10):
        position, size = places[base]
        stored = bytearray(await ward.get(key))
        stored[position + 61 : position + size] = b"?" * (size - 61)
        await ward.change(key, bytes(stored))
    before = await ward.keys("segments/")
    left = await ward.repair()
    assert [(one.finding.start, one.finding.end) for one in left.left] == [(0, 2), (6, 8), (10, 12)]
    assert left.steps == [] and await ward.keys("segments/") == before
    cut = await ward.repair(cut=True)
    assert [(one.how, one.start, one.end) for one in cut.steps] == [
        ("cut", 0, 2),
        ("cut", 6, 8),
        ("cut", 10, 12),
    ]
    assert cut.exit_code == 0 and (await ward.scrub()).exit_code == 0
    await ward.caught_up()
    kept = [one for one in records["orders", 0] if one[0] not in (0, 1, 6, 7, 10, 11)]
    assert await ward.read("orders", 0) == kept
    assert await ward.keys("hurt/") == sorted(f"hurt/{key}.{places[base][0]}" for base in (0, 6, 10))
    await ward.kill()
    await ward.start()
    assert await ward.read("orders", 0) == kept
    assert await ward.read("other") == records["other", 0]
    await ward.write("orders", 0, [b"next"])
    assert (await ward.read("orders", 0))[-1] == (17, b"next")


async def test_an_index_is_rebuilt(ward: Ward) -> None:
    records = await fill(ward)
    for topic, index in TOPICS:
        (segment,) = (await ward.manifest(topic, index)).segments
        stored = bytearray(await ward.get(segment.index_key))
        stored[segment.index_start : segment.index_start + 24] = b"!" * 24
        await ward.change(segment.index_key, bytes(stored))
        (step,) = (await ward.repair()).steps
        assert step.how == "rebuilt" and (step.topic, step.partition) == (topic, index)
    assert (await ward.scrub()).exit_code == 0
    await ward.kill()
    await ward.start()
    assert await everything(ward) == records


async def test_a_footer_is_written_anew(ward: Ward) -> None:
    records = await fill(ward)
    key, _places = await positions(ward, "orders", 0)
    await ward.flip(key, len(await ward.get(key)) - 1)
    found = await ward.scrub()
    assert [one.what for one in found.damaged] == ["footer"]
    assert {one.how for one in (await ward.repair()).steps} == {"moved"}
    assert (await ward.scrub()).exit_code == 0
    await ward.kill()
    await ward.start()
    assert await everything(ward) == records


async def test_a_segment_that_is_gone(ward: Ward) -> None:
    records = await fill(ward)
    key, _places = await positions(ward, "orders", 0)
    await ward.open().delete(key)
    report = await ward.repair()
    assert {one.how for one in report.steps} == {"restored"} and report.exit_code == 0
    await ward.kill()
    await ward.start()
    assert await everything(ward) == records


async def test_a_segment_that_was_cut_short_stays_where_nothing_else_has_its_records(ward: Ward) -> None:
    records = await fill(ward)
    await drop_old_logs(ward)
    key, _places = await positions(ward, "orders", 0)
    whole = await ward.get(key)
    await ward.change(key, whole[:5])
    for _ in range(2):
        report = await ward.repair()
        assert not [one for one in report.steps if (one.topic, one.partition) == ("orders", 0)]
        assert (0, 12) in {(one.finding.start, one.finding.end) for one in report.left}
        (segment,) = (await ward.manifest("orders", 0)).segments
        assert segment.key == key
    await ward.change(key, whole)
    await ward.kill()
    await ward.start()
    assert await everything(ward) == records
    assert (await ward.scrub()).exit_code == 0


async def two_alike(ward: Ward, topics: tuple[str, str]) -> list[tuple[str, Records]]:
    """Settled one after the other, with segments that differ in nothing but their records, and these; no log
    has them any more."""
    await ward.start()
    for topic in dict.fromkeys(topics):
        await ward.create(topic)
    settled: list[tuple[str, Records]] = []
    for at, topic in enumerate(topics):
        before = len(await ward.read(topic))
        await ward.write(topic, 0, [b"%d-a" % at], [b"%d-b" % at], [b"%d-c" % at])
        assert await ward.ledger.settle()
        settled.append((topic, (await ward.read(topic))[before:]))
    await drop_old_logs(ward)
    await ward.kill()
    return settled


async def swap(ward: Ward, keys: Sequence[str]) -> None:
    one, other = [await ward.get(key) for key in keys]
    assert len(one) == len(other)
    await ward.change(keys[0], other)
    await ward.change(keys[1], one)


async def test_segments_that_were_swapped_give_no_records_of_other_offsets(ward: Ward) -> None:
    settled = await two_alike(ward, ("a", "a"))
    records = [record for _topic, some in settled for record in some]
    keys = [segment.key for segment in (await ward.manifest("a")).segments]
    await swap(ward, keys)
    await ward.start()
    for offset in (0, 3):
        with pytest.raises(HurtRangeError) as told:
            await read(ward.ledger, ward.partition("a"), offset)
        assert (told.value.start, told.value.end) == (offset, offset + 3)
    await ward.kill()
    assert {(one.key, one.start, one.end) for one in (await ward.scrub()).damaged} >= {
        (keys[0], 0, 3),
        (keys[1], 3, 6),
    }
    await swap(ward, keys)
    await ward.start()
    assert await ward.read("a") == records


async def test_segments_that_were_swapped_are_restored_from_each_other(ward: Ward) -> None:
    for topics in (("a", "a"), ("b", "c")):
        settled = await two_alike(ward, topics)
        segments = [
            segment for topic in dict.fromkeys(topics) for segment in (await ward.manifest(topic)).segments
        ]
        await swap(ward, [segment.key for segment in segments])
        report = await ward.repair()
        assert {(one.how, one.topic, one.start) for one in report.steps} == {
            ("restored", topic, some[0][0]) for topic, some in settled
        }
        assert (await ward.scrub()).exit_code == 0
        await ward.start()
        for topic in dict.fromkeys(topics):
            assert await ward.read(topic) == [
                record for name, some in settled if name == topic for record in some
            ]
        await ward.kill()


@pytest.mark.parametrize("running", [True, False])
async def test_a_manifest_is_corrected(ward: Ward, running: bool) -> None:
    records = await fill(ward)
    if not running:
        await ward.kill()
    ref = (await ward.image()).topics["orders"].partitions[1].manifest
    assert ref is not None
    await ward.flip(ref.key, ref.start + 40, 3)
    report = await ward.repair()
    assert [(one.topic, one.partition, one.how) for one in report.steps] == [("orders", 1, "corrected")]
    assert (await ward.scrub()).exit_code == 0
    if running:
        await ward.kill()
    await ward.start()
    assert await everything(ward) == records


async def test_entries_of_the_metadata_log_are_corrected(ward: Ward) -> None:
    records = await fill(ward)
    await ward.kill()
    keys = await ward.keys("meta/log/")
    whole = {key: await ward.get(key) for key in keys}
    for at, key in enumerate(keys):
        await ward.flip(key, min(8 + 5 * at, len(whole[key]) - 1), at % 8)
    report = await ward.repair()
    assert sorted(one.key for one in report.steps) == sorted(keys) and report.exit_code == 0
    assert {key: await ward.get(key) for key in keys} == whole
    assert [key for key in await ward.keys("hurt/") if key.startswith("hurt/meta/log/")]
    await ward.start()
    assert await everything(ward) == records


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_log_that_nobody_writes_is_corrected(ward: Ward, sealed: bool) -> None:
    records = await fill(ward)
    await ward.kill()
    if sealed:
        await ward.start()
        await ward.kill()
    image = await ward.image()
    (wal,) = [wal for wal in image.wal_uses if image.wal_starts.get(wal)]
    ward.leave_presence(wal)
    start = image.wal_starts[wal] + (0 if ward.on_directory else 1)
    keys = [key for key in await ward.keys(f"wal/{wal.broker}/{wal.epoch}/") if key[-1].isdecimal()]
    keys = [key for key in keys if int(key.rpartition("/")[2]) >= start and len(await ward.get(key)) > 8]
    numbers = random.Random(3)
    for _ in range(60):
        key = keys[numbers.randrange(len(keys))]
        whole = await ward.get(key)
        await ward.flip(key, numbers.randrange(len(whole)), numbers.randrange(8))
        report = await ward.repair()
        assert report.steps and report.exit_code == 0, report
        assert await ward.get(key) == whole
        for kept in await ward.keys("hurt/"):
            await ward.open().delete(kept)
    assert (await ward.scrub()).exit_code == 0
    await ward.start()
    assert await everything(ward) == records


@pytest.mark.parametrize("ward", ["directory"], indirect=True)
async def test_a_file_that_became_a_segment(ward: Ward) -> None:
    """Its batches lie among flush headers, and its index in another object."""
    await ward.start()
    await ward.create("large")
    numbers = random.Random(1)
    await ward.write("large", 0, *([numbers.randbytes(100_000)] for _ in range(16)))
    assert await ward.ledger.settle()
    records = await ward.read("large")
    (segment,) = (await ward.manifest("large")).segments
    assert segment.index_key != segment.key
    await ward.overwrite(segment.index_key, segment.index_start + 8, b"?" * 30)
    (step,) = (await ward.repair()).steps
    assert step.how == "rebuilt"
    assert (await ward.scrub()).exit_code == 0
    await ward.caught_up()
    assert await ward.read("large") == records


async def test_where_compaction_has_been(ward: Ward) -> None:
    await ward.start()
    await ward.create("c", 1, **COMPACTED)
    await ward.write("c", 0, *([b"%d" % n * 9] * (12 - n) for n in range(12)))
    assert await ward.ledger.settle()
    await ward.clean()
    await ward.write("c", 0, [b"new"])
    assert await ward.ledger.settle()
    for key in await ward.keys("wal/"):
        if len(await ward.get(key)) > 8:
            await ward.open().delete(key)
    records = await ward.read("c")
    segment = (await ward.manifest("c")).segments[0]
    stored = await ward.get(segment.key)
    for key in await ward.keys("segments/"):
        if key not in {one.key for one in (await ward.manifest("c")).segments}:
            await ward.open().delete(key)
    position, header = list(iter_batches(stored, 0, segment.index_start))[1]
    await ward.flip(segment.key, position + 70, 3)
    (step,) = (await ward.repair()).steps
    assert step.how == "corrected"
    await ward.caught_up()
    assert await ward.read("c") == records
    segment = (await ward.manifest("c")).segments[0]
    await ward.overwrite(segment.key, position + 61, b"?" * (header.size - 61))
    (step,) = (await ward.repair(cut=True)).steps
    assert step.how == "cut" and step.start <= header.base_offset and header.last_offset < step.end
    await ward.caught_up()
    kept = [one for one in records if not header.base_offset <= one[0] <= header.last_offset]
    assert await ward.read("c") == kept and kept
    assert (await ward.scrub()).exit_code == 0


async def test_whatever_is_hurt_of_segments_is_cut_and_all_else_stays(ward: Ward) -> None:
    numbers = random.Random(11)
    records = await fill(ward)
    await drop_old_logs(ward)
    for _ in range(12):
        keys = [one.key for topic, index in TOPICS for one in (await ward.manifest(topic, index)).segments]
        key = keys[numbers.randrange(len(keys))]
        size = len(await ward.get(key))
        at = numbers.randrange(size)
        await ward.overwrite(key, at, numbers.randbytes(min(numbers.randrange(2, 150), size - at)))
        named = {
            (one.topic, one.partition, offset)
            for one in (await ward.scrub()).damaged
            for offset in range(one.start, one.end)
        }
        report = await ward.repair(cut=True)
        assert report.exit_code == 0, report
        gone = {
            (one.topic, one.partition, offset)
            for one in report.steps
            if one.how == "cut"
            for offset in range(one.start, one.end)
        }
        assert gone <= named
        await ward.caught_up()
        for place in TOPICS:
            records[place] = [one for one in records[place] if (*place, one[0]) not in gone]
            assert await ward.read(*place) == records[place], report
        assert (await ward.scrub()).exit_code == 0
    await ward.kill()
    await ward.start()
    assert await everything(ward) == records


async def test_a_broker_that_writes_and_settles_meanwhile(ward: Ward) -> None:
    records = await fill(ward)
    over = asyncio.Event()
    written: list[bytes] = []

    async def write() -> None:
        while not over.is_set():
            written.append(b"meanwhile-%d" % len(written))
            await ward.write("orders", 1, [written[-1]])
            if len(written) % 5 == 0:
                await ward.ledger.settle()

    writing = asyncio.create_task(write())
    for _ in range(10):
        segment = (await ward.manifest("orders", 1)).segments[0]
        start = (await ward.extents(segment)).positions[0]
        await ward.flip(segment.key, start + 90, 1)
        async with asyncio.timeout(30):
            while (await ward.repair()).exit_code:
                continue
        assert (await ward.scrub()).exit_code == 0
    over.set()
    await writing
    await ward.caught_up()
    expected = records["orders", 1] + [(12 + at, value) for at, value in enumerate(written)]
    assert await ward.read("orders", 1) == expected
    await ward.kill()
    await ward.start()
    assert await ward.read("orders", 1) == expected


async def test_the_header_and_the_index_of_a_flush_are_told_by_the_rest(ward: Ward) -> None:
    records = await fill(ward)
    await ward.kill()
    await ward.start()
    await ward.kill()
    image = await ward.image()
    (wal,) = [wal for wal in image.wal_uses if image.wal_starts.get(wal)]
    start = image.wal_starts[wal]
    prefix = f"wal/{wal.broker}/{wal.epoch}/"
    if ward.on_directory:
        key = f"{prefix}{start:020d}"
        whole = await ward.get(key)
        flushes = [at for at in range(len(whole)) if whole[at : at + 4] == b"PWF1"]
        places = [(key, at) for at in flushes[1:3]]
    else:
        places = [(f"{prefix}{start + number:020d}", 0) for number in (2, 3)]
    before = {key: await ward.get(key) for key, _at in places}
    (key, at), (other, index) = places
    await ward.overwrite(key, at + 2, b"????")  # The magic and the checksum of the header.
    header = decode_flush_header(before[other][index:])
    index_at = index + FLUSH_HEADER_SIZE + header.data_size
    await ward.overwrite(other, index_at + 45, b"??????")  # A batch header that the index repeats.
    named = [(one.topic, one.start, one.end) for one in (await ward.scrub()).damaged]
    assert named == [("orders", 13, 14), ("orders", 14, 15)]
    report = await ward.repair()
    assert report.exit_code == 0, report
    assert {key: await ward.get(key) for key in before} == before
    await ward.start()
    assert await everything(ward) == records


async def test_records_that_a_log_lost_are_said_to_be_hurt_until_they_are_cut(ward: Ward) -> None:
    records = await fill(ward)
    await ward.kill()
    (wal,) = (await ward.image()).wal_starts
    start = (await ward.image()).wal_starts[wal]
    prefix = f"wal/{wal.broker}/{wal.epoch}/"
    if ward.on_directory:
        key = f"{prefix}{start:020d}"
        whole = await ward.get(key)
        flushes = [at for at in range(len(whole)) if whole[at : at + 4] == b"PWF1"]
        await ward.overwrite(key, flushes[2], b"?" * (flushes[3] - flushes[2]))
    else:
        key = f"{prefix}{start + 3:020d}"
        await ward.change(key, b"?" * len(await ward.get(key)))
    ward.leave_presence(wal)
    left = await ward.repair(cut=True)
    assert left.exit_code == 1 and all("Start the cluster" in one.advice for one in left.left)
    await ward.start()
    assert await ward.ledger.settle()
    # Of a partition without later records nobody knows how many it lost.
    hurt = {(one.topic, one.partition): one for one in (await ward.scrub()).damaged}
    assert {one.what for one in hurt.values()} == {"hurt range"}
    assert (hurt["orders", 0].start, hurt["orders", 0].end) == (14, 15)
    steps = {(one.topic, one.partition): one for one in (await ward.repair(cut=True)).steps}
    assert steps.keys() == hurt.keys() and {one.how for one in steps.values()} == {"cut"}
    await ward.caught_up()
    assert (await ward.scrub()).exit_code == 0
    for place in TOPICS[1:]:
        assert await ward.read(*place) == records[place]
    kept = [one for one in records["orders", 0] if one[0] != 14]
    assert await ward.read("orders", 0) == kept
    assert ward.partition("orders", 0).hurt == ()
    await ward.write("orders", 0, [b"next"])
    assert (await ward.read("orders", 0))[-1] == (17, b"next")


async def lose_a_flush(ward: Ward, which: int = 2) -> tuple[str, bytes]:
    """One of those that are not settled: the object, and what it held."""
    await ward.kill()
    ((wal, start),) = (await ward.image()).wal_starts.items()
    keys = [key for key in await ward.keys(f"wal/{wal.broker}/{wal.epoch}/") if key[-1].isdecimal()]
    later = [key for key in keys if int(key.rpartition("/")[2]) > start]
    key = keys[-1] if ward.on_directory else later[which]
    whole = await ward.get(key)
    flushes = [at for at in range(len(whole)) if whole[at : at + 4] == b"PWF1"]
    at, end = (
        [*zip(flushes, [*flushes[1:], len(whole)], strict=True)][which]
        if ward.on_directory
        else (0, len(whole))
    )
    await ward.change(key, whole[:at] + b"?" * (end - at) + whole[end:])
    ward.leave_presence(wal)
    await ward.start()
    return key, whole


async def test_a_lost_flush_that_is_brought_back_is_restored_between_its_neighbours(ward: Ward) -> None:
    records = await fill(ward)
    key, whole = await lose_a_flush(ward)
    assert await ward.ledger.settle()
    (hurt,) = ward.partition("orders", 0).hurt
    assert (hurt.start, hurt.end) == (14, 15)
    (segment,) = [one for one in (await ward.manifest("orders", 0)).segments if one.end_offset > 14]
    assert segment.base_offset < 14, "it lies within a segment"
    await ward.open().put(key, whole)
    steps = [one for one in (await ward.repair()).steps if (one.topic, one.partition) == ("orders", 0)]
    assert [(one.how, one.start, one.end) for one in steps] == [("restored", 14, 15)]
    await ward.caught_up()
    assert ward.partition("orders", 0).hurt == ()
    assert await ward.read("orders", 0) == records["orders", 0]
    await ward.kill()
    await ward.start()
    assert await ward.read("orders", 0) == records["orders", 0]
    assert not [one for one in (await ward.scrub()).damaged if (one.topic, one.partition) == ("orders", 0)]


@pytest.mark.parametrize("cut", [False, True])
async def test_the_last_records_are_restored_although_nobody_knows_how_many_were_lost(
    ward: Ward, cut: bool
) -> None:
    records = await fill(ward)
    await ward.write("orders", 1, [b"last"])
    key, whole = await lose_a_flush(ward, -1)
    assert await ward.ledger.settle()
    (hurt,) = ward.partition("orders", 1).hurt
    assert hurt.start == 12 and hurt.end > 1 << 32
    await ward.open().put(key, whole)
    report = await ward.repair(cut=cut)
    steps = {
        (one.how, one.start, one.end) for one in report.steps if (one.topic, one.partition) == ("orders", 1)
    }
    assert steps == {("restored", 12, 13)} | ({("cut", 13, hurt.end)} if cut else set())
    await ward.caught_up()
    assert [(one.start, one.end) for one in ward.partition("orders", 1).hurt] == (
        [] if cut else [(13, hurt.end)]
    )
    await ward.write("orders", 1, [b"next"])
    await ward.kill()
    await ward.start()
    assert await ward.read("orders", 1) == [*records["orders", 1], (12, b"last"), (hurt.end, b"next")]


async def test_what_is_restored_is_not_committed_beside_a_segment_that_spans_it(ward: Ward) -> None:
    await fill(ward)
    await lose_a_flush(ward)
    assert await ward.ledger.settle()
    manifest = await ward.manifest("orders", 0)
    (spanning,) = [one for one in manifest.segments if one.end_offset > 14]
    beside = msgspec.structs.replace(spanning, base_offset=14, end_offset=15)
    assert Exchange({}, [beside], list(manifest.hurt), []).within(manifest) is None
    assert Exchange({spanning: [beside]}, [], list(manifest.hurt), []).within(manifest) is not None


async def test_flushes_that_are_gone_are_waited_for_until_they_are_cut(ward: Ward) -> None:
    records = await fill(ward)
    await ward.kill()
    await ward.start()
    await ward.kill()
    image = await ward.image()
    (wal,) = [wal for wal in image.wal_uses if wal in image.sealed]
    prefix = f"wal/{wal.broker}/{wal.epoch}/"
    number = image.wal_starts[wal] + (0 if ward.on_directory else 3)
    key = f"{prefix}{number:020d}"
    await ward.open().delete(key)
    told = await ward.repair(apply=False)
    assert told.exit_code == 1 and told.steps == []
    assert GONE in {one.advice for one in told.left}, told
    (step,) = (await ward.repair(apply=False, cut=True)).steps
    assert (step.how, step.key) == ("cut", key)
    assert key not in await ward.keys(prefix), "it was only told"
    cut = await ward.repair(cut=True)
    assert [one.key for one in cut.steps] == [key] and {one.advice for one in cut.left} == {START}
    await ward.start()
    for place in TOPICS:
        hurt = ward.partition(*place).hurt
        left = [one for one in records[place] if not any(lost.start <= one[0] < lost.end for lost in hurt)]
        assert (await ward.read(*place))[: len(left)] == left
    assert ward.partition("orders", 0).hurt
    await ward.write("orders", 0, [b"next"])
    assert ward.partition("orders", 0).high_watermark > records["orders", 0][-1][0] + 1


@pytest.mark.parametrize("bases", [(4,), (2, 4)])
async def test_an_abort_marker_is_not_cut_out(ward: Ward, bases: tuple[int, ...]) -> None:
    """Without it a consumer would take what the producer commits next for aborted, too."""
    await ward.start()
    await ward.create("t")
    await ward.append("t", 0, data(7, 0, b"a"), commit(7), data(7, 1, b"b", b"c"), abort(7), data(8, 0, b"d"))
    await ward.append("t", 0, data(7, 3, b"e"), commit(7), commit(8))
    assert await ward.ledger.settle()
    await drop_old_logs(ward)
    kept: Records = [(0, b"a"), (5, b"d"), (6, b"e")]
    assert await ward.read_committed("t") == kept
    listed = (await ward.manifest("t")).aborted
    key, places = await positions(ward, "t", 0)
    for base in bases:
        position, size = places[base]
        await ward.overwrite(key, position + 61, b"?" * (size - 61))
    steps = (await ward.repair(cut=True)).steps
    assert [(one.how, one.start, one.end) for one in steps] == [("cut", bases[0], 5), ("rebuilt", 4, 5)]
    await ward.caught_up()
    for _ in range(2):
        assert await ward.read_committed("t") == kept
        assert (await ward.scrub()).exit_code == 0
        assert (await ward.manifest("t")).aborted == tuple(ward.partition("t").aborted) == listed
        await ward.kill()
        await ward.start()


async def test_an_index_is_rebuilt_beside_transactions(ward: Ward) -> None:
    """Aborted ranges and open transactions are the manifest's, and stay what they were."""
    await ward.start()
    await ward.create("t")
    await ward.append("t", 0, data(7, 0, b"a"), abort(7), data(8, 0, b"b"), commit(8), data(9, 0, b"open"))
    assert await ward.ledger.settle()
    before = await ward.manifest("t")
    (segment,) = before.segments
    await ward.overwrite(segment.index_key, segment.index_start, b"!" * 24)
    assert {one.how for one in (await ward.repair()).steps} == {"rebuilt"}
    after = await ward.manifest("t")
    assert (after.aborted, after.ongoing) == (before.aborted, {9: 4})
    await ward.kill()
    await ward.start()
    assert (await ward.scrub()).exit_code == 0
    assert await ward.read_committed("t") == [(2, b"b")]
    assert ward.partition("t").last_stable_offset == 4


@pytest.mark.parametrize("end", [4, 5])
async def test_transactions_that_a_log_lost_are_not_put_back(tmp_path: Path, end: int) -> None:
    """The log's file is hurt, a broker settles without what was in it, and then the file comes back from a
    backup. What was decided meanwhile does not know of the transaction in it, or of its abort, so its records
    stay away. Those that are in no transaction come back."""
    ward = Ward("directory", tmp_path)
    try:
        await ward.start()
        await ward.create("t")
        await ward.append("t", 0, data(8, 0, b"a"), commit(8), build_batch([Record(0, 1, None, b"plain")]))
        await ward.append("t", 0, data(7, 0, b"lost"), abort(7), data(8, 1, b"b"), commit(8))
        await ward.kill()
        (key,) = [one for one in await ward.keys("wal/1/") if one.endswith("0")]
        whole = await ward.get(key)
        flushes = [at for at in range(len(whole)) if whole[at : at + 4] == b"PWF1"]
        await ward.overwrite(key, flushes[2], b"?" * (flushes[end] - flushes[2]))
        await ward.start()
        assert await ward.ledger.settle()
        assert [(one.start, one.end) for one in (await ward.manifest("t")).hurt] == [(2, end)]
        await ward.open().put(key, whole)
        report = await ward.repair()
        assert [(one.how, one.start, one.end) for one in report.steps] == [("restored", 2, 3)]
        assert "records of transactions" in report.left[0].advice
        await ward.caught_up()
        assert [(one.start, one.end) for one in ward.partition("t").hurt] == [(3, end)]
        (step,) = (await ward.repair(cut=True)).steps
        assert (step.how, step.start, step.end) == ("cut", 3, end)
        await ward.caught_up()
        assert await ward.read_committed("t") == [(0, b"a"), (2, b"plain"), (5, b"b")]
        assert (await ward.scrub()).exit_code == 0
    finally:
        await ward.kill()


async def test_what_compaction_took_out_of_transactions_does_not_come_back(ward: Ward) -> None:
    """A log has the records as they were, but nobody knows any more which of them were aborted."""
    await ward.start()
    await ward.create("t", 1, **COMPACTED, **{"delete.retention.ms": "0"})

    def sent(sequence: int, value: bytes) -> bytearray:
        return build_batch(
            [Record(0, 1, b"key", value)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    await ward.append("t", 0, sent(0, b"aborted"), abort(7), sent(1, b"committed"), commit(7))
    await ward.write("t", 0, [b"a"], [b"b"])
    assert await ward.ledger.settle()
    await ward.clean()
    for value in (b"c", b"d", b"e"):
        await ward.write("t", 0, [value])
        assert await ward.ledger.settle()
        await ward.clean()
    manifest = await ward.manifest("t")
    assert manifest.aborted == () and manifest.compacted_end > 2
    before = await ward.read_committed("t")
    assert before[0] == (2, b"committed")
    segment = manifest.segments[0]
    whole = await ward.get(segment.key)
    await ward.change(segment.key, whole[:5])
    report = await ward.repair()
    assert report.steps == [] and {one.advice for one in report.left} == {UNCLEAR}
    await ward.change(segment.key, whole)
    await ward.kill()
    await ward.start()
    assert await ward.read_committed("t") == before
    await ward.change(segment.key, whole[:5])
    await ward.repair(cut=True)
    await ward.caught_up()
    assert await ward.read("t") == []
    assert (await ward.scrub()).exit_code == 0
