"""Random histories with crashes at any byte: what was acknowledged is there, once, where it was said to be.

A history is a list of steps on one store: batches to some partitions, with and without producer ids, retried
now and then; settling, merging, collecting garbage; deaths in the middle of a write; restarts. After every
restart the promises are checked against a model that knows what was sent and what was acknowledged.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.answers import Appended
from penstock.storage.partitions.partition import Partition
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.files import Files
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import ObjectStore, StoreError
from penstock.storage.wal.directory import DirectoryWalStore
from penstock.storage.wal.objects import ObjectWalStore
from penstock.wire.errors import ErrorCode
from tests.storage.faults import FaultyFiles
from tests.storage.test_settling import NO_DELAY, PROMPT, collect, forget_tails
from tests.storage.world import World, append, batch, own_partition, read_all

PARTITIONS = 2
PRODUCERS = 1
FULL_STEPS = 3  # So long a disk stays full.


class Sender:
    """An idempotent producer on one partition: retries what it does not know to be stored."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.next_sequence = 0
        self.unknown: list[tuple[int, bytes]] = []
        self.stored: dict[int, tuple[int, bytes]] = {}

    def batch(self, sequence: int, value: bytes) -> bytearray:
        return batch(value, producer_id=self.producer_id, producer_epoch=0, base_sequence=sequence)


class History:
    def __init__(self, world: World, reopen: Callable[[], Awaitable[None]], seed: int) -> None:
        self.world = world
        self._reopen = reopen
        self._random = random.Random(seed)
        self._number = 0
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.sent: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
        self.watermarks = [0] * PARTITIONS
        self.senders = [[Sender(10 * at + n) for n in range(PRODUCERS)] for at in range(PARTITIONS)]
        self.topic = b""
        self.ledger: Ledger

    async def begin(self) -> None:
        self.world.policies["t"] = NO_DELAY
        self.ledger = await self.world.start(settings=PROMPT)
        self.topic = self.topic or await self.world.create_topic("t", PARTITIONS)

    def partition(self, at: int) -> Partition:
        return own_partition(self.ledger, self.topic, at)

    def _value(self, at: int) -> bytes:
        self._number += 1
        value = b"%d " % self._number * self._random.choice((1, 1, 5, 300, 3000))
        self.sent[at].add(value)
        return value

    async def send(self, at: int, count: int) -> None:
        if self.ledger.partition(self.topic, at) is None:
            return
        values = [self._value(at) for _ in range(count)]
        answers = await append(self.ledger, self.partition(at), *(batch(value) for value in values))
        for value, answer in zip(values, answers, strict=True):
            if isinstance(answer, Appended):
                self._acknowledge(at, answer.base_offset, value)

    def _acknowledge(self, at: int, offset: int, value: bytes) -> None:
        assert self.acknowledged[at].setdefault(offset, value) == value, "an offset was given twice"
        self.watermarks[at] = max(self.watermarks[at], offset + 1)

    async def produce(self, at: int, which: int, count: int) -> None:
        """The idempotent producer sends what it is not sure of again, then more."""
        if self.ledger.partition(self.topic, at) is None:
            return
        sender = self.senders[at][which]
        while len(sender.unknown) < count:
            sender.unknown.append((sender.next_sequence, self._value(at)))
            sender.next_sequence += 1
        batches = [sender.batch(*one) for one in sender.unknown]
        answers = await append(self.ledger, self.partition(at), *batches)
        still_unknown = []
        for (sequence, value), answer in zip(sender.unknown, answers, strict=True):
            if isinstance(answer, Appended):
                sender.stored[sequence] = (answer.base_offset, value)
                self._acknowledge(at, answer.base_offset, value)
            else:
                still_unknown.append((sequence, value))
        sender.unknown = still_unknown

    async def background(self, what: str) -> None:
        try:
            if what == "settle":
                await self.ledger.settle()
            elif what == "merge":
                await self.ledger._settler.merge()
            else:
                await collect(self.ledger)
        except StoreError:
            pass  # The disk died; the restart will tell.

    async def restart(self) -> None:
        await self.world.kill(self.ledger)
        await self._reopen()
        await self.begin()
        await self.check()

    async def check(self) -> None:
        for at in range(PARTITIONS):
            partition = self.partition(at)
            assert partition.high_watermark >= self.watermarks[at], "the high watermark went back"
            self.watermarks[at] = partition.high_watermark
            if self._random.random() < 0.5:
                forget_tails(self.ledger)
            found = await read_all(self.ledger, partition, self._random.choice((1, 5000, 1 << 20)))
            assert [offset for offset, _ in found] == list(range(partition.high_watermark)), "a hole"
            values = dict(found)
            for offset, value in self.acknowledged[at].items():
                assert values[offset] == value, "an acknowledged record is gone"
            assert set(values.values()) <= self.sent[at], "a record that nobody sent"
            stored_once = [v for s in self.senders[at] for _, v in s.stored.values()]
            for value in stored_once:
                assert list(values.values()).count(value) == 1, "a retried record was stored twice"


_partitions = st.integers(0, PARTITIONS - 1)
_producers = st.integers(0, PRODUCERS - 1)
_produce = st.tuples(st.just("produce"), _partitions, _producers, st.integers(1, 5))
_step = st.one_of(
    st.tuples(st.just("send"), _partitions, st.integers(1, 3)),
    _produce,
    _produce,
    _produce,
    _produce,
    st.tuples(st.sampled_from(["settle", "merge", "collect", "settle"])),
    st.tuples(st.just("die"), st.integers(0, 2000)),
    st.tuples(st.just("die after write")),
    st.tuples(st.just("full"), st.integers(0, 500)),
    st.tuples(st.just("restart")),
)
_steps = st.lists(_step, min_size=25, max_size=60)


async def run(steps: list[tuple[object, ...]], seed: int, world: World, files: FaultyFiles | None) -> None:
    current = [files]

    async def reopen() -> None:
        """A new process on the same disk."""
        if current[0] is None:
            return
        assert isinstance(world.store, DirectoryStore)
        await world.store.close()
        current[0] = FaultyFiles()
        world.store = DirectoryStore(world.store.root, files=current[0])
        world.wal_store = DirectoryWalStore(world.store, file_bytes=3000)

    history = History(world, reopen, seed)
    await history.begin()
    full_until = 0
    for number, step in enumerate(steps):
        if number >= full_until and current[0] is not None:
            current[0].bytes_left = None
        match step:
            case ("send", int(at), int(count)):
                await history.send(at, count)
            case ("produce", int(at), int(which), int(count)):
                await history.produce(at, which, count)
            case (("settle" | "merge" | "collect") as what,):
                await history.background(what)
            case ("die", int(after)):
                if current[0] is not None:
                    current[0].dies_after = after
            case ("die after write",):
                if current[0] is not None:
                    current[0].dies_after_write = True
            case ("full", int(left)):
                if current[0] is not None:
                    current[0].bytes_left = left
                    full_until = number + FULL_STEPS
            case ("restart",):
                await history.restart()
        if current[0] is not None and current[0].dead:
            await history.restart()
    await history.restart()
    # Everything can be sent in the end, each record once.
    for at in range(PARTITIONS):
        for which in range(PRODUCERS):
            await history.produce(at, which, len(history.senders[at][which].unknown))
            assert not history.senders[at][which].unknown
    await history.check()
    await world.close()


def examples(count: int) -> "Callable[[Callable[..., None]], Callable[..., None]]":
    return settings(
        derandomize=True, max_examples=count, deadline=None, suppress_health_check=list(HealthCheck)
    )


def run_on_files(steps: list[tuple[object, ...]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = FaultyFiles()
        store = DirectoryStore(str(Path(directory) / "store"), files=files)
        asyncio.run(run(steps, seed, World(store, DirectoryWalStore(store, file_bytes=3000)), files))


def run_on_objects(steps: list[tuple[object, ...]], seed: int) -> None:
    store: ObjectStore = MemoryStore()
    asyncio.run(run(steps, seed, World(store, ObjectWalStore(store)), None))


@given(_steps, st.integers(0, 2**32))
@examples(25)
def test_files_on_a_directory(steps: list[tuple[object, ...]], seed: int) -> None:
    run_on_files(steps, seed)


@given(_steps, st.integers(0, 2**32))
@examples(25)
def test_objects(steps: list[tuple[object, ...]], seed: int) -> None:
    run_on_objects(steps, seed)


def likely_steps(seed: int) -> list[tuple[object, ...]]:
    """A long history as brokers live it: many appends, some background work, a failure now and then."""
    rng = random.Random(seed)
    weights = {
        "produce": 16,
        "send": 4,
        "settle": 3,
        "merge": 1,
        "collect": 2,
        "full": 2,
        "die": 1,
        "die after write": 1,
        "restart": 1,
    }
    steps: list[tuple[object, ...]] = []
    for kind in rng.choices(list(weights), list(weights.values()), k=120):
        match kind:
            case "produce":
                at, which = rng.randrange(PARTITIONS), rng.randrange(PRODUCERS)
                steps.append((kind, at, which, rng.randint(1, 5)))
            case "send":
                steps.append((kind, rng.randrange(PARTITIONS), rng.randint(1, 3)))
            case "full" | "die":
                steps.append((kind, rng.randint(0, 600)))
            case _:
                steps.append((kind,))
    return steps


SEEDS = range(int(os.environ.get("PENSTOCK_SEEDS", "15")))
"""A failing seed is in the name of the test. PENSTOCK_SEEDS=1000 tries more."""


@pytest.mark.parametrize("seed", SEEDS)
def test_long_histories_on_files(seed: int) -> None:
    run_on_files(likely_steps(seed), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_long_histories_on_objects(seed: int) -> None:
    run_on_objects(likely_steps(seed), seed)


@pytest.mark.parametrize("size", [30, 700])
async def test_a_kill_at_every_byte_of_a_flush(tmp_path: Path, size: int) -> None:
    """The write-ahead file cut at every byte: always a whole number of flushes, never garbage."""
    world = World(DirectoryStore(str(tmp_path / "store"), files=Files()))
    ledger = await world.start()
    topic = await world.create_topic("t", 2)
    values = [bytes([97 + n]) * size for n in range(3)]
    for at, value in enumerate(values):
        await append(ledger, own_partition(ledger, topic, at % 2), batch(value), batch(value.upper()))
    await world.kill(ledger)
    path = next((tmp_path / "store" / "wal").rglob("0*"))
    content = path.read_bytes()
    counts = set()
    store = DirectoryWalStore(DirectoryStore(str(tmp_path / "store")))
    for end in range(0, len(content) + 1, 1 if size < 100 else 13):
        path.write_bytes(content[:end])
        counts.add(await store.seal(ledger.wal))
    path.write_bytes(content)
    assert counts <= {0, 1, 2, 3} and await store.seal(ledger.wal) == 3
    await world.close()


async def test_answers_are_errors_when_the_disk_is_dead(tmp_path: Path) -> None:
    files = FaultyFiles()
    world = World(DirectoryStore(str(tmp_path / "store"), files=files))
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    files.dies_after = 100
    (answer,) = await append(ledger, partition, batch(b"x" * 500))
    assert isinstance(answer, ErrorCode)
    files.dead = False
    files.dies_after = None
    await world.close()
