"""Random histories of a store that is hurt: beside compaction and transactions, repaired or brought back.

A history writes, plainly and in transactions that commit or abort, and between that settles, merges, cleans,
deletes and dies. Then some objects are hurt, and the broker goes on. What it tells meanwhile is a record as
it was written, or that it is hurt. In the end the objects come back, or a repair cuts out what is hurt, and
then everything is there but what was cut.
"""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.admin.records import Aborted
from penstock.cluster import second_looks
from penstock.cluster.health.repair_report import RepairReport
from penstock.node.node import StartError
from penstock.storage.partitions.partition import Partition
from penstock.storage.settling import hurt_sources
from penstock.storage.stores.objects import HurtRangeError, StoreError
from penstock.storage.wal import objects
from penstock.wire.api.fetch import AbortedTransaction, PartitionData
from penstock.wire.batch import Record, build_batch, check_batch, iter_batches, iter_records
from penstock.wire.markers import ABORT, COMMIT, marker_batch
from tests.storage.world import append_ok, read

from .ward import COMPACTED, TIME_MS, Ward

Place = tuple[str, int]
PLACES: tuple[Place, ...] = (("p", 0), ("p", 1), ("c", 0))
ROUNDS = 3
REPAIRS_MAX = 4
SEEDS = (*range(6), 22, 44, 65, 77)
"""The last four found a repair that took out what it had left, or that knew nothing of transactions."""


class Written(NamedTuple):
    key: bytes
    value: bytes
    producer: int
    """-1: in no transaction."""


class Found(NamedTuple):
    records: dict[int, tuple[bytes | None, bytes | None]]
    hurt: list[tuple[int, int]]
    """Offsets from the first up to, not including, the second."""


class History:
    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.ward = Ward(kind, folder, "log.cleaner.enable=false", "log.segment.delete.delay.ms=0")
        self.number = 0
        self.written: dict[Place, dict[int, Written]] = {place: {} for place in PLACES}
        self.ends: dict[Place, dict[int, tuple[int, int]]] = {place: {} for place in PLACES}
        """Markers by offset: producer and kind."""
        self.sequences: dict[tuple[Place, int], int] = {}
        self.open: set[tuple[Place, int]] = set()
        self.next = dict.fromkeys(PLACES, 0)
        self.cut: dict[Place, list[tuple[int, int]]] = {place: [] for place in PLACES}
        self.kept: dict[str, bytes] = {}
        """Objects as they were before they were hurt."""

    async def start(self) -> None:
        await self.ward.start()
        # Its timer would do the same as the steps do, at moments that depend on the machine's speed.
        upkeep = self.ward.ledger._upkeep_task
        assert upkeep is not None
        upkeep.cancel()

    async def kill(self) -> None:
        """Behind a heartbeat: what was written after the last one, nobody misses."""
        assert self.ward.node is not None and self.ward.node._incarnation is not None
        membership = self.ward.node._incarnation._membership
        assert membership is not None
        await membership.heartbeats.beat()
        await self.ward.kill()

    async def begin(self) -> None:
        await self.start()
        await self.ward.create("p", 2)
        await self.ward.create("c", 1, **COMPACTED)

    def partition(self, place: Place) -> Partition | None:
        """None while the store does not give it."""
        assert self.ward.node is not None
        topic = self.ward.node.broker.image.topic(place[0])
        assert topic is not None
        return self.ward.ledger.partition(topic.id, place[1])

    # What is written.

    async def append(self, place: Place, batch: bytearray, count: int) -> int | None:
        partition = self.partition(place)
        if partition is None:
            return None
        try:
            (base,) = await append_ok(self.ward.ledger, partition, batch)
        except AssertionError:
            return None  # What its producer wrote before is lost.
        assert base >= self.next[place], "an offset is given twice"
        self.next[place] = base + count
        return base

    async def write(self, place: Place, producer: int = -1) -> None:
        records = []
        for at in range(self.random.randrange(1, 5)):
            self.number += 1
            # Partitions differ in the sizes of their batches: a swap shows.
            value = b"%d" % self.number + b"." * (self.random.choice((0, 30, 700)) + 7 * PLACES.index(place))
            records.append(Record(at, TIME_MS + self.number, b"k%d" % self.random.randrange(6), value))
        if producer < 0:
            batch = build_batch(records)
        else:
            sequence = self.sequences.get((place, producer), 0)
            batch = build_batch(
                records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
            )
        base = await self.append(place, batch, len(records))
        if base is None:
            return
        if producer >= 0:
            self.sequences[place, producer] = sequence + len(records)
            self.open.add((place, producer))
        for record in records:
            assert record.key is not None and record.value is not None
            self.written[place][base + record.offset] = Written(record.key, record.value, producer)

    async def end(self, producer: int, kind: int) -> None:
        for place in PLACES:
            if (place, producer) in self.open:
                base = await self.append(place, marker_batch(kind, producer, 0, 1, TIME_MS), 1)
                if base is not None:
                    self.open.discard((place, producer))
                    self.ends[place][base] = producer, kind

    async def step(self) -> None:
        ledger = self.ward.ledger
        place, producer = self.random.choice(PLACES), self.random.randrange(2)
        match self.random.choices(range(8), (20, 20, 15, 15, 5, 10, 5, 3))[0]:
            case 0:
                await self.write(place)
            case 1:
                await self.write(place, producer)
            case 2:
                await self.end(producer, self.random.choice((ABORT, COMMIT)))
            case 3:
                await ledger.settle()
            case 4:
                await ledger._settler.merge()
            case 5:
                await ledger.clean()
            case 6:
                partition = self.partition(place)
                if partition is not None:
                    end = min(partition.log_start_offset + 5, partition.high_watermark)
                    await ledger.delete_records(partition, end)
            case 7:
                await self.kill()
                await self.start()

    # What is hurt.

    async def hurt(self) -> None:
        """Of a store that nobody writes to."""
        prefix = self.random.choice(("segments/",) * 4 + ("manifests/",) * 2 + ("wal/",) * 3)
        keys = [key for key in await self.ward.keys(prefix) if len(await self.ward.get(key)) > 16]
        if not keys:
            return
        key, other = self.random.choice(keys), self.random.choice(keys)
        whole, its = await self.ward.get(key), await self.ward.get(other)
        self.kept.setdefault(key, whole)
        at = self.random.randrange(len(whole))
        # A manifest does not say which one of its partition it is.
        ways = ("flip", "junk", "zeros", "cut", "gone") + (("swap",) if prefix != "manifests/" else ())
        match self.random.choice(ways):
            case "flip":
                await self.ward.flip(key, at, self.random.randrange(8))
            case "junk":
                length = min(self.random.randrange(1, 200), len(whole) - at)
                await self.ward.overwrite(key, at, self.random.randbytes(length))
            case "zeros":
                await self.ward.overwrite(key, at, bytes(min(512, len(whole) - at)))
            case "cut":
                await self.ward.change(key, whole[:at])
            case "gone":
                async with self.ward.opened() as store:
                    await store.delete(key)
            case "swap":
                self.kept.setdefault(other, its)
                await self.ward.change(key, its)
                await self.ward.change(other, whole)

    async def bring_back(self) -> None:
        async with self.ward.opened() as store:
            for key, whole in self.kept.items():
                if await store.get(key) != whole:
                    await store.put(key, whole)
        self.kept.clear()

    async def repair(self, *, cut: bool) -> RepairReport:
        report = await self.ward.repair(cut=cut)
        for step in report.steps:
            if step.how == "cut" and step.topic:
                self.cut[step.topic, step.partition].append((step.start, step.end))
        return report

    # What is read.

    async def read(self, partition: Partition, *, committed: bool = False) -> Found:
        """As a consumer does: by the list of aborted transactions and the markers."""
        ledger = self.ward.ledger
        while ledger._cache._order:
            ledger._cache._evict()
        found = Found({}, [])
        limit = partition.last_stable_offset if committed else partition.high_watermark
        listed = partition.aborted_transactions(partition.log_start_offset, limit)
        told = [AbortedTransaction(one.producer_id, one.first_offset) for one in listed]
        aborted = Aborted(PartitionData(aborted_transactions=told))
        offset = partition.log_start_offset
        while offset < limit:
            try:
                part = await read(ledger, partition, offset, self.random.choice((1, 300, 1 << 20)), limit)
            except HurtRangeError as hurt:
                assert offset < hurt.end
                found.hurt.append((hurt.start, hurt.end))
                offset = hurt.end
                continue
            except StoreError:
                # An object is not there. Others may be.
                place = (partition.topic, partition.index)
                after = min((one for one in self.written[place] if one > offset), default=limit)
                found.hurt.append((offset, after))
                offset = after
                continue
            if not part.size:
                break  # A gap, up to the end.
            joined = b"".join(part.buffers)
            for position, header in iter_batches(joined):
                check_batch(joined, position)
                skipped = (
                    committed and header.last_offset >= offset and aborted.skips(header, joined, position)
                )
                if header.is_control or skipped:
                    continue
                for record in iter_records(joined, position):
                    if record.offset >= offset:
                        assert record.offset not in found.records, "a record is read twice"
                        found.records[record.offset] = record.key, record.value
            assert part.next_offset > offset
            offset = part.next_offset
        return found

    def fate(self, place: Place, offset: int, gone: Callable[[int], bool]) -> int | None:
        """COMMIT or ABORT; None if the transaction is open, or the marker that ended it is gone."""
        producer = self.written[place][offset].producer
        if producer < 0:
            return COMMIT
        markers = (at for at, one in self.ends[place].items() if at > offset and one[0] == producer)
        marker = min(markers, default=None)
        return None if marker is None or gone(marker) else self.ends[place][marker][1]

    async def check(self, *, whole: bool) -> None:
        """`whole`: nothing is hurt any more."""
        for place in PLACES:
            partition = self.partition(place)
            assert partition is not None or not whole, "a partition is closed"
            if partition is None:
                continue
            assert partition.high_watermark >= self.next[place]
            found = await self.read(partition)
            assert not (whole and found.hurt)
            gaps = self.cut[place] + found.hurt
            written = self.written[place]
            for offset, record in found.records.items():
                assert written[offset][:2] == record, (place, offset)

            def gone(offset: int, gaps: list[tuple[int, int]] = gaps) -> bool:
                return any(start <= offset < end for start, end in gaps)

            fates = {offset: self.fate(place, offset, gone) for offset in written}
            if place[0] == "p":
                expected = set(written)
            else:
                # A later one whose fate is not known any more may have been known when it was cleaned.
                newest = {one.key: at for at, one in sorted(written.items()) if fates[at] != ABORT}
                expected = {at for at in newest.values() if fates[at] == COMMIT}
            start, stable = partition.log_start_offset, partition.last_stable_offset
            missing = [at for at in expected if at >= start and at not in found.records and not gone(at)]
            assert not missing, (place, missing, gaps)
            committed = (await self.read(partition, committed=True)).records
            assert not [at for at in committed if fates[at] == ABORT], "what was aborted is read"
            if whole:
                assert not [
                    at for at in found.records if at < stable and fates[at] == COMMIT and at not in committed
                ], "what was committed is not read"

    # A life.

    async def round(self) -> None:
        for _ in range(self.random.randrange(5, 30)):
            await self.step()
        await self.check(whole=True)
        await self.kill()
        for _ in range(self.random.randrange(1, 4)):
            await self.hurt()
        if self.random.random() < 0.3:
            await self.repair(cut=False)
        if self.random.random() < 0.5:
            with contextlib.suppress(StoreError, StartError):
                await self.start()
                for _ in range(self.random.randrange(5)):
                    await self.step()
                await self.check(whole=False)
                await self.kill()
        await self.bring_back() if self.random.random() < 0.5 else await self.repair(cut=True)
        await self.heal()
        await self.check(whole=True)
        assert (await self.ward.scrub()).exit_code == 0

    async def heal(self) -> None:
        """Whatever it takes."""
        for tries in range(REPAIRS_MAX):
            try:
                await self.start()
            except StartError:
                # A file of a log lies where another one should.
                await self.ward.kill()
                await self.bring_back()
                await self.start()
            with contextlib.suppress(StoreError):
                await self.ward.ledger.settle()
            report = await self.repair(cut=True)
            closed = any(self.partition(place) is None for place in PLACES)
            await self.kill()
            if not report.exit_code and not closed:
                break
            if tries == 1:
                await self.bring_back()
        else:
            raise AssertionError(report)
        self.kept.clear()
        await self.start()


@pytest.mark.parametrize("kind", ["directory", "memory"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_hurt_is_said_and_what_is_healed_is_whole(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hurt_sources, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(second_looks, "PAUSES_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(objects, "_SALVAGE_PAUSES_SECONDS", (0.0,))
    history = History(kind, tmp_path, seed)
    try:
        await history.begin()
        for _ in range(ROUNDS):
            await history.round()
    finally:
        await history.ward.kill()
