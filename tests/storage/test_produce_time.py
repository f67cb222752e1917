"""A batch whose time is over: not written if it waited for a flush, in doubt if its flush was under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.clock import SystemClock
from penstock.log import partition
from penstock.log.flush import FLUSH_HEADER_SIZE
from penstock.metadata.image import WalRef
from penstock.storage.ledger import flusher as flushing
from penstock.storage.ledger.flusher import Flusher
from penstock.storage.partitions.answers import Appended
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.settings import LedgerSettings
from penstock.storage.partitions.tail_cache import TailCache
from penstock.storage.partitions.traffic import TopicTraffic
from penstock.storage.stores.objects import StoreError
from penstock.storage.wal.files import WalFiles
from penstock.storage.wal.port import Durable, Failed, Outcome
from penstock.testing.waiting import eventually
from penstock.wire.batch import Record, build_batch
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode

Told = Appended | ErrorCode
TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
WAL = WalRef(1, 1)
SOON = 0.02


class HeldWriter:
    """Writes end when the test says so."""

    batches_max = 1000
    flushes_max = 1000
    nonce = bytes(8)

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth
        self.under_way: list[tuple[int, Callable[[Outcome], None]]] = []
        self.written: list[bytes] = []
        self._position = 0

    def write(
        self, number: int, parts: list[Buffer], size: int, done: Callable[[Outcome], None]
    ) -> Outcome | None:
        self.written.append(b"".join(parts))
        self.under_way.append((number, done))
        return None

    def rotate(self, number: int) -> None: ...

    async def close(self) -> None: ...

    def end(self, *, well: bool = True) -> None:
        """The oldest flush has its outcome; those behind a failed one are lost with it."""
        _number, done = self.under_way.pop(0)
        if well:
            place = self._position
            self._position += FLUSH_HEADER_SIZE + 10_000
            done(Durable("log", place))
        else:
            self.under_way.clear()
            done(Failed(StoreError("no"), fatal=False))


class Desk:
    """One partition, and what became of each batch by the value of its record, in the order it was told."""

    def __init__(self, depth: int = 1) -> None:
        self.writer = HeldWriter(depth)
        files = WalFiles()
        self.flusher = Flusher(
            self.writer,
            TailCache(1_000_000),
            SystemClock(),
            LedgerSettings(),
            TopicTraffic(),
            file=lambda key: files.file(WAL, key),
            on_full=lambda: None,
            on_end=lambda reason: None,
        )
        self.partition = Partition(b"t" * 16, "t", 0, 0)
        self.partition.lead()
        self.told: dict[str, list[Told]] = {}

    def append(self, name: str, seconds: float = SOON, *, producer: int = -1, sequence: int = -1) -> None:
        data = build_batch(
            [Record(value=name.encode())],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )
        self.flusher.append(self.partition, data, self.told.setdefault(name, []).append, seconds)

    async def finish(self) -> None:
        """End well whatever is under way, until nothing is left."""
        async with asyncio.timeout(60):
            while self.flusher._dirty or self.writer.under_way:
                if self.writer.under_way:
                    self.writer.end()
                await asyncio.sleep(0)

    def codes(self) -> dict[str, object]:
        return {
            name: [one if isinstance(one, ErrorCode) else one.base_offset for one in told]
            for name, told in self.told.items()
        }


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "TICK_SECONDS", 0.005)


async def test_what_waits_is_not_written_when_its_time_is_over() -> None:
    desk = Desk()
    desk.append("under way", flushing.NEVER)
    await eventually(lambda: desk.writer.under_way)
    desk.append("late")
    desk.append("patient", 60)
    await eventually(lambda: desk.told["late"])
    await desk.finish()
    assert desk.codes() == {"under way": [0], "late": [TIMED_OUT], "patient": [1]}
    assert b"late" not in b"".join(desk.writer.written)


async def test_what_is_under_way_is_in_doubt_and_its_outcome_counts() -> None:
    desk = Desk()
    desk.append("doubt", producer=7, sequence=0)
    await eventually(lambda: desk.told["doubt"])
    assert desk.codes() == {"doubt": [TIMED_OUT]}
    desk.append("again", 60, producer=7, sequence=0)
    desk.append("next", 60, producer=7, sequence=1)
    await desk.finish()
    assert desk.codes() == {"doubt": [TIMED_OUT, 0], "again": [0], "next": [1]}
    assert desk.partition.high_watermark == 2


async def test_what_was_in_doubt_and_failed_is_written_when_it_is_sent_again() -> None:
    desk = Desk()
    desk.append("doubt", producer=7, sequence=0)
    await eventually(lambda: desk.told["doubt"])
    desk.writer.end(well=False)
    desk.append("again", 60, producer=7, sequence=0)
    await desk.finish()
    assert desk.codes() == {"doubt": [TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR], "again": [0]}


async def test_a_duplicate_of_what_is_in_doubt_has_its_own_time() -> None:
    desk = Desk(depth=2)
    desk.append("doubt", 60, producer=7, sequence=0)
    await eventually(lambda: desk.writer.under_way)
    desk.append("again", producer=7, sequence=0)
    await eventually(lambda: desk.told["again"])
    await desk.finish()
    assert desk.codes() == {"doubt": [0], "again": [TIMED_OUT]}


async def test_with_a_batch_those_behind_it_of_its_producer_are_dropped() -> None:
    """Nothing is known of the producer: its second batch would be taken for its first."""
    desk = Desk()
    desk.append("under way", 60)
    await eventually(lambda: desk.writer.under_way)
    desk.append("first", producer=7, sequence=0)
    for number in range(1, 5):
        desk.append(f"behind {number}", 60, producer=7, sequence=number)
    desk.append("another's", 60, producer=8, sequence=0)
    desk.append("nobody's", 60)
    await eventually(lambda: desk.told["first"])
    assert [desk.told[f"behind {number}"] for number in range(1, 5)] == [[TIMED_OUT]] * 4
    # The client sends them again in order.
    for number in range(5):
        desk.append(f"again {number}", 60, producer=7, sequence=number)
    await desk.finish()
    assert desk.codes() == {
        "under way": [0],
        "first": [TIMED_OUT],
        **{f"behind {number}": [TIMED_OUT] for number in range(1, 5)},
        "another's": [1],
        "nobody's": [2],
        **{f"again {number}": [3 + number] for number in range(5)},
    }


@pytest.mark.parametrize("behind", [False, True])
async def test_what_comes_after_the_first_was_dropped_does_not_become_the_first(behind: bool) -> None:
    desk = Desk()
    desk.append("under way", 60)
    await eventually(lambda: desk.writer.under_way)
    desk.append("first", producer=7, sequence=0)
    if behind:
        desk.append("second", 60, producer=7, sequence=1)
    await eventually(lambda: desk.told["first"])
    desk.append("third", 60, producer=7, sequence=2)
    await desk.finish()
    assert desk.codes()["third"] == [ErrorCode.KAFKA_STORAGE_ERROR]
    for number in range(3):
        desk.append(f"again {number}", 60, producer=7, sequence=number)
    await desk.finish()
    assert [desk.codes()[f"again {number}"] for number in range(3)] == [[1], [2], [3]]


async def test_a_partition_that_was_closed_for_a_moment_remembers_who_was_first() -> None:
    desk = Desk()
    desk.append("under way", 60)
    await eventually(lambda: desk.writer.under_way)
    desk.append("first", 60, producer=7, sequence=0)
    desk.flusher.refuse(desk.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    desk.append("second", 60, producer=7, sequence=1)
    desk.append("another's", 60, producer=8, sequence=0)
    await desk.finish()
    assert desk.codes()["second"] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert desk.codes()["another's"] == [1]


async def test_a_copy_that_was_dropped_holds_nobody_up_once_the_batch_is_written() -> None:
    """Its flush was under way when its time was over; so was another when the copy waited for that."""
    desk = Desk()
    desk.append("before", 60, producer=7, sequence=0)
    await desk.finish()
    desk.append("doubt", producer=7, sequence=1)
    await eventually(lambda: desk.told["doubt"])
    desk.append("copy", producer=7, sequence=1)
    await eventually(lambda: desk.told["copy"])
    await desk.finish()
    desk.append("next", 60, producer=7, sequence=2)
    desk.append("gap", 60, producer=7, sequence=9)
    await desk.finish()
    codes = desk.codes()
    assert [codes["doubt"], codes["copy"], codes["next"]] == [[TIMED_OUT, 1], [TIMED_OUT], [2]]
    assert codes["gap"] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]


async def test_with_a_failed_flush_those_behind_it_of_its_producers_are_refused() -> None:
    desk = Desk()
    desk.append("first", 60, producer=7, sequence=0)
    await eventually(lambda: desk.writer.under_way)
    desk.append("second", 60, producer=7, sequence=1)
    desk.append("another's", 60, producer=8, sequence=0)
    desk.writer.end(well=False)
    desk.append("again", 60, producer=7, sequence=0)
    await desk.finish()
    failed = ErrorCode.KAFKA_STORAGE_ERROR
    assert desk.codes() == {"first": [failed], "second": [failed], "another's": [0], "again": [1]}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_what_was_on_its_way_behind_an_unwritten_batch_is_to_be_sent_again(
    known: bool, fails: bool
) -> None:
    """It is neither the first of an unknown producer nor out of order. A producer that is told the latter
    begins a new epoch, and what it sends in that is no duplicate of what is in the log already."""
    desk = Desk()
    first = 0
    if known:
        desk.append("before", 60, producer=7, sequence=0)
        await desk.finish()
        first = 1
    desk.append("failing" if fails else "another's", 60, producer=7 if fails else -1, sequence=first)
    await eventually(lambda: desk.writer.under_way)
    if fails:
        desk.writer.end(well=False)
    else:
        desk.append("late", producer=7, sequence=first)
        await eventually(lambda: desk.told["late"])
    for number in (2, 1):
        desk.append(f"behind {number}", 60, producer=7, sequence=first + number)
    await desk.finish()
    for number in range(3):
        desk.append(f"again {number}", 60, producer=7, sequence=first + number)
    desk.append("gap", 60, producer=7, sequence=first + 9)
    await desk.finish()
    at = desk.partition.high_watermark - 3
    codes = desk.codes()
    failed = ErrorCode.KAFKA_STORAGE_ERROR
    assert [codes["behind 1"], codes["behind 2"]] == [[failed]] * 2
    assert [codes[f"again {number}"] for number in range(3)] == [[at], [at + 1], [at + 2]]
    assert codes["gap"] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert desk.partition.undone == {}


@pytest.mark.parametrize("known", [False, True])
async def test_a_producer_that_goes_on_without_a_batch_has_given_it_up(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    if known:
        desk.append("before", 60, producer=7, sequence=4)
        await desk.finish()
    desk.append("failing", 60, producer=7, sequence=5)
    await eventually(lambda: desk.writer.under_way)
    desk.writer.end(well=False)
    desk.append("behind", 60, producer=7, sequence=6)
    await desk.finish()
    monkeypatch.setattr(partition, "ABANDONED_MS", 0)
    desk.append("later", 60, producer=7, sequence=7)
    await desk.finish()
    codes = desk.codes()
    assert codes["behind"] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert codes["later"] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if known else 0]


async def test_a_new_epoch_does_not_wait_for_what_was_not_written() -> None:
    desk = Desk()
    desk.append("failing", 60, producer=7, sequence=4)
    await eventually(lambda: desk.writer.under_way)
    desk.writer.end(well=False)
    data = build_batch([Record(value=b"new")], producer_id=7, producer_epoch=1, base_sequence=0)
    desk.flusher.append(desk.partition, data, desk.told.setdefault("new", []).append, 60)
    await desk.finish()
    assert desk.codes()["new"] == [0] and desk.partition.undone == {}


async def test_the_timer_rests_while_nothing_is_under_way() -> None:
    desk = Desk()
    desk.append("one", 60)
    await eventually(lambda: desk.writer.under_way)
    await desk.finish()
    await eventually(lambda: desk.flusher._ticking is None)
