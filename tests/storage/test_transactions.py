"""Transactions in storage: what readers see of them, whatever happens to the partition meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from penstock.log.markers import AbortedTransaction, MarkerKind, parse_marker
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.partition import Partition
from penstock.wire.batch import HEADER_SIZE, TRANSACTIONAL, Record, build_batch, iter_batches, iter_records
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode
from penstock.wire.markers import ABORT, COMMIT, marker_batch
from tests.storage.test_produce_time import Desk
from tests.storage.world import World, admitted, append, append_ok, own_partition, read

TIME = 1_700_000_000_000
PRODUCERS = (1, 2, 3)


def data(producer: int, sequence: int, *values: bytes) -> bytearray:
    records = [Record(at, TIME, None, value) for at, value in enumerate(values)]
    return build_batch(
        records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
    )


def marker(kind: int, producer: int) -> bytearray:
    return marker_batch(kind, producer, 0, 0, TIME)


# -- before a write is durable ----------------------------------------------------------------------------


async def test_a_transaction_is_open_until_its_marker_is_durable() -> None:
    desk = Desk(depth=3)
    partition = desk.partition

    def send(batch: bytearray, name: str) -> None:
        desk.flusher.append(partition, admitted(batch), desk.told.setdefault(name, []).append)
        desk.flusher._begin()

    send(data(1, 0, b"x"), "data")
    send(marker(COMMIT, 1), "marker")
    send(build_batch([Record(0, TIME, None, b"after")]), "after")
    assert len(desk.writer.under_way) == 3
    ends = []
    while desk.writer.under_way:
        desk.writer.end()
        ends.append((partition.high_watermark, partition.last_stable_offset))
    assert ends == [(1, 0), (2, 2), (3, 3)]


async def test_a_marker_that_was_not_written_leaves_the_transaction_open() -> None:
    desk = Desk(depth=3)
    partition = desk.partition
    for batch in (data(1, 0, b"x"), marker(ABORT, 1)):
        desk.flusher.append(partition, admitted(batch), desk.told.setdefault("", []).append)
        desk.flusher._begin()
    desk.writer.end()
    desk.writer.end(well=False)
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
    assert partition.aborted_transactions(0, 10) == []
    assert desk.told[""][1] == ErrorCode.KAFKA_STORAGE_ERROR
    desk.flusher.append(partition, marker(COMMIT, 1), desk.told[""].append)
    desk.flusher._begin()
    desk.writer.end()
    assert (partition.last_stable_offset, partition.aborted_transactions(0, 10)) == (2, [])


# -- every fetch ------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    offset: int
    value: bytes


class Model:
    """What was written, and what became of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.end = 0
        self.log_start = 0
        self.records: list[tuple[Seen, int]] = []
        """Each with the number of its transaction; -1: none."""
        self.kinds: list[int | None] = []
        """How each transaction ended."""
        self.first_offsets: list[int] = []
        self.open: dict[int, int] = {}
        self.sequences = dict.fromkeys(PRODUCERS, 0)

    def batch(self) -> bytearray:
        chance = self.random.random()
        producer = self.random.choice(PRODUCERS)
        if chance < 0.15:
            return build_batch([Record(0, TIME, None, self._add(1, -1)[0])])
        if chance < 0.5 and producer in self.open:
            kind = self.random.choice((ABORT, COMMIT))
            self.kinds[self.open.pop(producer)] = kind
            self.end += 1
            return marker(kind, producer)
        if chance < 0.55:
            self.end += 1
            if producer in self.open:
                self.kinds[self.open.pop(producer)] = ABORT
            return marker(ABORT, producer)  # Perhaps of a transaction without records here.
        if producer not in self.open:
            self.open[producer] = len(self.kinds)
            self.kinds.append(None)
            self.first_offsets.append(self.end)
        sequence = self.sequences[producer]
        count = self.random.randint(1, 3)
        self.sequences[producer] += count
        return data(producer, sequence, *self._add(count, self.open[producer]))

    def _add(self, count: int, transaction: int) -> list[bytes]:
        values = [b"%d" % (self.end + at) * self.random.choice((1, 30)) for at in range(count)]
        self.records += [(Seen(self.end + at, value), transaction) for at, value in enumerate(values)]
        self.end += count
        return values

    @property
    def stable(self) -> int:
        first = min((self.first_offsets[one] for one in self.open.values()), default=self.end)
        return max(first, self.log_start)

    def committed(self, start: int, end: int) -> list[Seen]:
        return [
            seen
            for seen, transaction in self.records
            if start <= seen.offset < end and (transaction < 0 or self.kinds[transaction] == COMMIT)
        ]


def consumed(stored: Buffer, offset: int, aborted: list[AbortedTransaction]) -> Iterator[Seen]:
    """What a consumer at read_committed makes of an answer, by the rules of Kafka's."""
    waiting = sorted(aborted, key=lambda one: one.first_offset)
    hidden: set[int] = set()
    for position, header in iter_batches(stored):
        while waiting and waiting[0].first_offset <= header.last_offset:
            hidden.add(waiting.pop(0).producer_id)
        if header.is_control:
            found = parse_marker(memoryview(stored)[position + HEADER_SIZE : position + header.size])
            if found is not None and found.kind is MarkerKind.ABORT:
                hidden.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in hidden):
            for record in iter_records(stored, position):
                if record.offset >= offset:
                    assert record.value is not None
                    yield Seen(record.offset, record.value)


async def check(ledger: Ledger, partition: Partition, model: Model) -> None:
    """At every offset, with every size, a reader sees what was committed and nothing else."""
    assert (partition.high_watermark, partition.last_stable_offset) == (model.end, model.stable)
    for offset in range(model.log_start, model.stable):
        for size in (1, 200, 1000):
            found = await read(ledger, partition, offset, size, limit=partition.last_stable_offset)
            aborted = partition.aborted_transactions(offset, found.next_offset)
            assert len({(one.producer_id, one.first_offset) for one in aborted}) == len(aborted)
            seen = list(consumed(b"".join(found.buffers), offset, aborted))
            assert seen == model.committed(offset, found.next_offset), (offset, size)


@pytest.mark.parametrize("seed", range(12))
async def test_every_fetch_shows_what_was_committed(local: World, seed: int) -> None:
    model = Model(seed)
    ledger = await local.start()
    topic = await local.create_topic("t")
    partition = own_partition(ledger, topic)
    for _ in range(8):
        batches = [model.batch() for _ in range(model.random.randint(1, 8))]
        await append_ok(ledger, partition, *batches)
        step = model.random.random()
        if step < 0.4:
            await ledger.settle()
        elif step < 0.6:
            await local.kill(ledger)
            ledger = await local.start()
            partition = own_partition(ledger, topic)
        elif step < 0.7 and partition.high_watermark:
            model.log_start = model.random.randrange(model.log_start, partition.high_watermark)
            assert await ledger.delete_records(partition, model.log_start) == model.log_start
        elif step < 0.8:
            while ledger._cache._order:
                ledger._cache._evict()
        await check(ledger, partition, model)


# -- many of them -----------------------------------------------------------------------------------------

MANY = 5_000


async def test_of_thousands_of_aborted_transactions_those_in_question_are_found(local: World) -> None:
    ledger = await local.start()
    topic = await local.create_topic("t")
    partition = own_partition(ledger, topic)
    for number in range(0, MANY, 500):
        batches: list[bytearray] = []
        for sequence in range(number, number + 500):
            batches += data(1, sequence, b"x"), marker(ABORT, 1)
        await append_ok(ledger, partition, *batches)
    for state in ("unsettled", "settled", "recovered", "settled again"):
        if "settled" in state:
            await ledger.settle()
        if state == "recovered":
            await local.kill(ledger)
            ledger = await local.start()
            partition = own_partition(ledger, topic)
        assert len(partition.aborted) == MANY, state
        assert partition.last_stable_offset == 2 * MANY
        for offset in (0, 1, MANY, 2 * MANY - 1):
            first = offset - offset % 2
            (found,) = partition.aborted_transactions(offset, offset + 1)
            assert (found.first_offset, found.last_offset) == (first, first + 1), (state, offset)
        began = time.thread_time()  # whatever else the machine does
        for offset in range(0, 2 * MANY, 10):
            partition.aborted_transactions(offset, offset + 1)
        assert time.thread_time() - began < 1, "it does not go through all of them"


async def test_a_long_transaction_does_not_hide_short_ones_that_ended_before(local: World) -> None:
    """It is the oldest, and its marker comes last: a reader in the middle still finds all that concern it."""
    ledger = await local.start()
    topic = await local.create_topic("t")
    partition = own_partition(ledger, topic)
    batches = [data(9, 0, b"long")]
    for sequence in range(100):
        batches += data(1, sequence, b"x"), marker(ABORT, 1)
    batches += data(9, 1, b"long"), marker(ABORT, 9)
    await append_ok(ledger, partition, *batches)
    found = partition.aborted_transactions(51, 52)
    assert [(one.producer_id, one.first_offset) for one in found] == [(1, 51), (9, 0)]


# -- records that go --------------------------------------------------------------------------------------


async def test_deleting_records_of_an_open_transaction_does_not_end_it(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, data(1, 0, b"a", b"b"), build_batch([Record(0, TIME, None, b"c")]))
    assert await ledger.delete_records(partition, 1) == 1
    assert (partition.log_start_offset, partition.last_stable_offset) == (1, 1)
    assert await ledger.delete_records(partition, 3) == 3
    assert partition.last_stable_offset == partition.high_watermark == 3
    await append_ok(ledger, partition, build_batch([Record(0, TIME, None, b"d")]))
    assert (partition.last_stable_offset, partition.high_watermark) == (3, 4)
    await ledger.settle()
    await world.kill(ledger)
    ledger = await world.start()
    partition = own_partition(ledger, topic)
    assert (partition.last_stable_offset, partition.high_watermark) == (3, 4)
    assert partition.in_transaction(1, 0)
    await append_ok(ledger, partition, data(1, 2, b"e"), marker(ABORT, 1))
    assert partition.last_stable_offset == partition.high_watermark == 6
    (aborted,) = partition.aborted_transactions(3, 6)
    assert (aborted.first_offset, aborted.last_offset) == (0, 5)


async def test_a_topic_that_is_made_again_knows_nothing_of_a_transaction_before(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    old = own_partition(ledger, topic)
    await append_ok(ledger, old, data(1, 0, b"x"))
    await world.delete_topic(topic)
    assert await append(ledger, old, marker(ABORT, 1)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    again = await world.create_topic("again")
    partition = own_partition(ledger, again)
    assert not partition.in_transaction(1, 0)
    await append_ok(ledger, partition, build_batch([Record(0, TIME, None, b"x")]))
    assert partition.last_stable_offset == 1


async def test_a_producer_in_a_transaction_does_not_expire(world: World) -> None:
    ledger = await world.start()
    topic = await world.create_topic("t")
    partition = own_partition(ledger, topic)
    await append_ok(ledger, partition, data(1, 0, b"x"), data(2, 0, b"x"), marker(COMMIT, 2))
    assert partition.expire_producers(world.clock.time_ms() + 10**12, 1) == 1
    assert partition.in_transaction(1, 0)
    assert 2 not in partition.producer_entries
