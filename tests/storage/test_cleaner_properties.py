"""Random histories of a compacted partition: the last committed value of each key is always there.

A history writes keys and tombstones, plainly and in transactions that commit or abort, and between that
settles, merges, compacts with little memory, deletes old records, lets the clock run, and dies at any byte
that it writes. A model that knows everything that was acknowledged says what a reader must find.
"""

import asyncio
import contextlib
import random
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.log.policy import LogPolicy
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.answers import Appended
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.settings import CleanerSettings
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.objects import StoreError
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.wire.batch import Record, build_batch, check_batch, iter_batches, iter_records
from penstock.wire.markers import ABORT, COMMIT, marker_batch
from tests.storage.faults import FaultyFiles
from tests.storage.world import QUIET, World, append, own_partition, read

RETENTION_MS = 5000
POLICY = LogPolicy(
    compact=True,
    delete=False,
    segment_ms=1000,
    min_cleanable_ratio=0.0,
    delete_retention_ms=RETENTION_MS,
    file_delete_delay_ms=0,
    producer_expiration_ms=20_000,
)
PROMPT = msgspec.structs.replace(QUIET, delete_delay_ms=0, merge_count=3)
PRODUCERS = 2


class Written(NamedTuple):
    key: bytes
    value: bytes | None
    timestamp: int


class Producer:
    def __init__(self, producer_id: int) -> None:
        self.id = producer_id
        self.epoch = 0
        self.sequence = 0
        self.open: dict[int, Written] = {}


class History:
    def __init__(self, root: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.files = FaultyFiles()
        store = DirectoryStore(root, files=self.files)
        self.world = World(store, DirectoryWalStore(store, file_bytes=3000))
        self.world.policies["t"] = POLICY
        self.committed: dict[int, Written] = {}
        self.producers = [Producer(100 + at) for at in range(PRODUCERS)]
        self.topic = b""
        self.number = 0
        self.cleaned = 0
        self.ledger: Ledger

    async def begin(self) -> None:
        self.ledger = await self.world.start(settings=PROMPT)
        # Its timer would do the same as the steps do, at moments that depend on the machine's speed.
        upkeep = self.ledger._upkeep_task
        assert upkeep is not None
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)
        self.topic = self.topic or await self.world.create_topic("t")

    @property
    def partition(self) -> Partition:
        return own_partition(self.ledger, self.topic)

    def _records(self, count: int) -> list[Record]:
        records = []
        for at in range(count):
            self.number += 1
            key = b"k%d" % self.random.randrange(6)
            if self.random.random() < 0.1:
                key = key * 30
            value = b"%d" % self.number * self.random.choice((1, 20)) if self.random.random() < 0.8 else None
            records.append(Record(at, self.world.clock.time_ms(), key, value))
        return records

    async def write(self, count: int, producer: Producer | None = None) -> None:
        records = self._records(count)
        codec = self.random.randrange(5)
        if producer is None:
            batch = build_batch(records, codec=codec)
        else:
            batch = build_batch(
                records,
                codec=codec,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                base_sequence=producer.sequence,
                transactional=True,
            )
        (answer,) = await append(self.ledger, self.partition, batch)
        if not isinstance(answer, Appended):
            return
        made = {
            answer.base_offset + r.offset: Written(r.key or b"", r.value, r.timestamp) for r in records
        }  # fmt: skip
        if producer is None:
            self.committed.update(made)
        else:
            producer.sequence += count
            producer.open.update(made)

    async def end(self, producer: Producer, kind: int) -> None:
        if not producer.open:
            return
        marker = marker_batch(kind, producer.id, producer.epoch, 1, self.world.clock.time_ms())
        (answer,) = await append(self.ledger, self.partition, marker)
        if isinstance(answer, Appended):
            if kind == COMMIT:
                self.committed.update(producer.open)
            producer.open = {}

    async def background(self, what: str) -> None:
        # The disk may die meanwhile; the restart will tell.
        with contextlib.suppress(StoreError):
            match what:
                case "settle":
                    await self.ledger.settle()
                case "merge":
                    await self.ledger._settler.merge()
                case "clean":
                    self.world.cleaner = CleanerSettings(
                        enable=False, dedupe_buffer_bytes=self.random.choice((1, 800, 1 << 20))
                    )
                    await self.ledger.settle()
                    self.cleaned += await self.ledger.clean()
                    self.ledger._own_cleaner()._failures.clear()
                case "retain":
                    await self.ledger._settler.retain()
                case "collect":
                    await self.ledger._garbage.collect(self.ledger._holdings.image)

    async def restart(self) -> None:
        await self.world.kill(self.ledger)
        await self.world.store.close()
        self.files = FaultyFiles()
        self.world.store = DirectoryStore(self.root, files=self.files)
        self.world.wal_store = DirectoryWalStore(self.world.store, file_bytes=3000)
        await self.begin()

    # What a reader finds.

    async def visible(self) -> dict[int, Written]:
        """What a reader of committed records gets."""
        partition = self.partition
        while self.ledger._cache._order:
            self.ledger._cache._evict()
        offset = partition.log_start_offset
        aborted = partition.aborted_transactions(0, 1 << 60)
        found: dict[int, Written] = {}
        while offset < partition.last_stable_offset:
            size = self.random.choice((1, 300, 1 << 20))
            part = await read(self.ledger, partition, offset, size, partition.last_stable_offset)
            assert part.next_offset > offset
            joined = b"".join(part.buffers)
            for position, header in iter_batches(joined):
                check_batch(joined, position)
                if header.is_control or any(
                    t.producer_id == header.producer_id
                    and t.first_offset <= header.base_offset <= t.last_offset
                    for t in aborted
                    if header.is_transactional
                ):
                    continue
                for record in iter_records(joined, position):
                    assert record.offset not in found or record.offset < offset
                    found[record.offset] = Written(record.key or b"", record.value, record.timestamp)
            offset = part.next_offset
        return found

    async def check(self) -> None:
        partition = self.partition
        stable = partition.last_stable_offset
        found = await self.visible()
        expected = {offset: one for offset, one in self.committed.items() if offset < stable}
        for offset, one in found.items():
            assert expected[offset] == one, "a record that nobody wrote there, or that was not committed"
        last = {one.key: offset for offset, one in sorted(expected.items())}
        last_found = {one.key: offset for offset, one in sorted(found.items())}
        now = self.world.clock.time_ms()
        for key, offset in last.items():
            one = expected[offset]
            if one.value is None and now >= one.timestamp + RETENTION_MS and key not in last_found:
                continue
            assert last_found.get(key) == offset, "the last value of a key is gone"
        if partition.manifest is not None:
            clean = [one.key for at, one in found.items() if at < partition.manifest.compacted_end]
            assert len(clean) == len(set(clean)), "a key twice where compaction has been"


_step = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 5)),
    st.tuples(st.just("write"), st.integers(1, 5)),
    st.tuples(st.just("transact"), st.integers(0, PRODUCERS - 1), st.integers(1, 3)),
    st.tuples(st.just("end"), st.integers(0, PRODUCERS - 1), st.sampled_from((ABORT, COMMIT))),
    st.tuples(st.sampled_from(("settle", "merge", "clean", "clean", "clean", "retain", "collect"))),
    st.tuples(st.just("wait"), st.sampled_from((1, 1001, 6000, 25_000))),
    st.tuples(st.just("die"), st.integers(0, 1500)),
    st.tuples(st.just("restart")),
)


async def run(root: str, steps: list[tuple[object, ...]], seed: int) -> int:
    history = History(root, seed)
    await history.begin()
    for step in steps:
        match step:
            case ("write", int(count)):
                await history.write(count)
            case ("transact", int(which), int(count)):
                await history.write(count, history.producers[which])
            case ("end", int(which), int(kind)):
                await history.end(history.producers[which], kind)
            case ("wait", int(ms)):
                history.world.clock.advance(ms)
            case ("die", int(after)):
                history.files.dies_after = after
            case ("restart",):
                await history.restart()
            case (str(what),):
                await history.background(what)
        if history.files.dead or history.ledger.partition(history.topic, 0) is None:
            await history.restart()
        await history.check()
    await history.restart()
    await history.check()
    for producer in history.producers:
        await history.end(producer, COMMIT)
    history.world.clock.advance(2000)
    for _ in range(20):
        await history.background("clean")
    await history.check()
    await history.world.close()
    return history.cleaned


@given(st.lists(_step, min_size=20, max_size=60), st.integers(0, 2**32))
@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_last_committed_value_of_each_key_is_always_there(
    steps: list[tuple[object, ...]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(str(Path(directory) / "store"), steps, seed))


def test_histories_do_compact() -> None:
    """The property above would hold for a cleaner that does nothing."""
    steps: list[tuple[object, ...]] = [("write", 5), ("wait", 1001), ("clean",)] * 5
    with tempfile.TemporaryDirectory() as directory:
        assert asyncio.run(run(str(Path(directory) / "store"), steps, 1)) >= 5
