"""One seed: a cluster, its clients and its faults, from the first start to the last check."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from penstock.entropy import Entropy
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.settings import Settings
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.objects import ObjectStore
from simulation.admin import Admin
from simulation.ages import APART_SECONDS_MAX, Ages
from simulation.checker import Checker, Violation
from simulation.client import Client, Unreachable
from simulation.clocks import AHEAD_SECONDS_MAX
from simulation.committers import Committer
from simulation.disk import SimulatedFiles
from simulation.elsewhere import Elsewhere
from simulation.faults import Faults
from simulation.filesystem import ROOT, Disk
from simulation.loop import CURRENT, Halted, Process, World
from simulation.machines import Machine, SeededEntropy, host_of
from simulation.movers import Mover
from simulation.network import Network
from simulation.peering import Peering
from simulation.producers import BareWriter, IdempotentProducer
from simulation.readers import Observer, Reader
from simulation.recreation import Recreator
from simulation.spinning import ends_in_time
from simulation.store import SharedStore, StoreView
from simulation.topics import AGED, BOUND_BYTES, BOUNDED, COMPACTED, PLAIN, TRIMMED, Topic
from simulation.trace import LINES_KEPT, Trace, TraceHandler
from simulation.transactions.ensemble import Ensemble
from simulation.trimmers import Trimmer
from simulation.truth import Truth
from simulation.views import Views
from simulation.weather import Weather
from simulation.worlds import ETCD, RECORDS, variety_of

SETUP_SECONDS_MAX = 60.0
HEALING_SECONDS_MAX = 60.0
"""After the last fault, everything must be as it should after so long."""


class Outcome(msgspec.Struct):
    """What came of one seed."""

    seed: int
    violations: list[str]
    digest: str
    steps: int
    acknowledged: int
    reads: int
    commits: int
    entries: int
    seconds: float
    lines: list[str] = []


class Scene:
    def __init__(
        self,
        seed: int,
        *,
        seconds: float | None = None,
        kind: str | None = None,
        keep: int = LINES_KEPT,
        only: tuple[str, ...] = (),
    ) -> None:
        self.seed = seed
        rng = random.Random(f"{seed}/scene")
        self.world = World(random.Random(f"{seed}/turns"))
        self.trace = Trace(self.world.time, keep=keep)
        self.checker = Checker(self.world.time, self._found)
        self.ages = Ages(self.checker, self.world.time)
        self.checker.on_start = self.ages.start_told
        self.views = Views(self)
        self.network = Network(self.world, random.Random(f"{seed}/network"))
        self.world.connect = Peering(self.network).connect
        self.shared = SharedStore(self.world, self.trace)
        self.shared.on_effect = self.checker.effect
        self.disk = Disk(self.world, self.trace)
        self.disk.on_flush = self.checker.flush
        self.disk.on_create = self.checker.effect
        self.truth = Truth(self)
        self.variety = variety_of(seed, kind, only)
        drawn = rng.choice(RECORDS)
        self.kind = drawn if kind is None else kind.removeprefix(ETCD)
        """What the store is: an object store, or a directory with this durability."""
        self.elsewhere = Elsewhere(self) if self.variety.etcd else None
        self._stops = rng.choice((0.0, 0.0005, 0.003))
        self.latency = rng.choice((0.002, 0.01, 0.05))
        self.session_seconds = 3.0
        self.seconds = rng.uniform(8, 17) if seconds is None else seconds
        self._waits_for_space = rng.random() < 0.15 or self.variety.footers
        self._settle_ms = rng.choice((1000, 2000, 6000))
        self.brokers = list(range(1, rng.choice((1, 2, 3, 3, 3, 3, 3, 3)) + 1))
        self.machines = {broker: self._machine(broker, rng) for broker in self.brokers}
        self.topics = [Topic(f"t{number}", rng.randint(1, 3)) for number in range(rng.randint(1, 2))]
        self.topics[-1].kind = rng.choice((PLAIN, PLAIN, BOUNDED, COMPACTED, TRIMMED))
        if self.variety.ages:
            self.topics[-1].kind = AGED
        self.transactions = Ensemble(self)
        """Not part of every world."""
        self.clients: list[Client] = []
        self.ending = False
        self._settings: Settings
        self._rng = rng
        every = rng.choice((0.5, 1.0, 2.0, 4.0))
        self._faults = Faults(self, random.Random(f"{seed}/faults"), every, only)
        self._producer_ids: dict[int, str] = {}

    def _machine(self, broker: int, rng: random.Random) -> Machine:
        settings = Settings().with_values(
            SETTINGS
            | {
                "broker.id": str(broker),
                "wal.settle.interval.ms": str(self._settle_ms),
                "default.replication.factor": str(len(self.brokers)),
                "listeners": f"PLAINTEXT://{host_of(broker)}:9092",
                "insecure.listeners.enable": "true",
                "log.message.timestamp.after.max.ms": str(LATE_MS_MAX if self.variety.jumps else 3_600_000),
                "metadata": StoreView.url if self.elsewhere is not None else "",
            }
        )
        settings = msgspec.structs.replace(settings, wal_segment_bytes=WAL_FILE_BYTES)
        weather = Weather(latency=self.latency, stops=self._stops, stop_seconds=2 * self.session_seconds)
        machine = Machine(
            self.world, self.network, self.trace, broker, settings, self.open_store, rng, weather, self.seed
        )
        machine.open_elsewhere = self.elsewhere.open if self.elsewhere is not None else None
        if self.variety.ages:
            machine.clock.wall_ahead *= APART_SECONDS_MAX / AHEAD_SECONDS_MAX
        if self.variety.jumps:
            machine.clock.drift(random.Random(f"{self.seed}/{machine.host}/clock"))
        machine.on_image = self._image_held
        machine.on_slow_start = lambda text: self.checker.fail("P2 start", text)
        machine.on_bug = lambda text: self.checker.fail("bug", text)
        return machine

    def open_store(self, process: Process, weather: Weather, entropy: Entropy) -> ObjectStore:
        rng = random.Random(f"{self.seed}/{process.name}/store")
        if self.kind != "objects":
            files = SimulatedFiles(self.disk, process, weather, rng)
            return DirectoryStore(ROOT, sync=self.kind == "fsync", files=files, entropy=entropy)
        return StoreView(self.shared, process, weather, rng)

    def entropy(self, name: str) -> Entropy:
        return SeededEntropy(f"{self.seed}/{name}/entropy")

    def _image_held(self, machine: Machine, image: ClusterImage) -> None:
        self.checker.image_held(machine.host, image)

    def _found(self, violation: Violation) -> None:
        self.trace.note("CHECK", str(violation))
        self.world.halted = True

    # What clients need to know.

    def producer_ids(self, producer_id: int, who: str) -> None:
        other = self._producer_ids.setdefault(producer_id, who)
        if other != who:
            self.checker.fail("P3 producer", f"{who} was given producer id {producer_id}, as was {other}")

    def rots_in_flight(self, broker: int) -> bool:
        """Whether what this broker read not long ago may have been wrong."""
        return self.machines[broker].weather.flipped_at > self.world.time() - 10.0

    def damage_at(self, broker: int, key: PartitionKey, offset: int) -> range:
        """The damage that a reader came upon at an offset, which a person would look up. In a compacted topic
        it may lie further up, and nothing between."""
        node = self.machines[broker].node
        partition = node.broker.ledger.partition(*key) if node is not None else None
        for damaged in partition.hurt if partition is not None else ():
            if offset < damaged.end and (
                damaged.start <= offset or self.checker.is_bare(key, offset, damaged.start)
            ):
                return range(max(offset, damaged.start), damaged.end)
        return range(offset, offset + 1)

    def waits_for_store(self, broker: int, key: PartitionKey) -> bool:
        """Whether a partition is not open yet because its leader was not given what it needs."""
        node = self.machines[broker].node
        if node is None:
            return True
        ledger = node.broker.ledger
        return ledger.refused(*key) and ledger.damaged(*key) is None

    def reads_well(self, broker: int, since: float) -> bool:
        """Could this broker read the store all the time?"""
        machine = self.machines[broker]
        return all(
            weather.latency < 0.1 and weather.troubled_at < since - 15.0
            for weather in (machine.weather, machine.elsewhere)
        )

    # The course of things.

    def run(self) -> Outcome:
        with _no_collection(), self._logging(), ends_in_time(partial(self.checker.fail, "bug")):
            main = self.world.create_task(self._course())
            try:
                self.world.run_until_complete(main)
            except Halted:
                main.cancel()
            except Exception as error:
                self.checker.violations.append(
                    Violation("simulator", "".join(traceback.format_exception(error)))
                )
        commits = sum(client.commits for client in self.clients if isinstance(client, Committer))
        return Outcome(
            self.seed,
            [str(violation) for violation in self.checker.violations],
            self.trace.digest,
            self.world.steps,
            len(self.checker.acknowledged),
            self.checker.reads,
            commits,
            self.checker.version,
            self.world.time(),
            list(self.trace.lines),
        )

    async def _course(self) -> None:
        for machine in self._rng.sample(list(self.machines.values()), len(self.machines)):
            machine.start()
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 1.0)) * self._rng.random())
        admin = Admin(self, "admin", self._rng.choice((0.5, 2.0)))
        async with asyncio.timeout(SETUP_SECONDS_MAX):
            await admin.process.spawn(admin.make(self._all_topics()))
        for topic in self._all_topics():
            if topic.kind == COMPACTED:
                self.checker.compacted.add(topic.id)
            if topic.kind in (BOUNDED, AGED):
                self.checker.starts_freely.add(topic.id)
            if topic.kind == AGED:
                self.ages.aged.add(topic.id)
        self.clients = [admin, *self._cast()]
        runs = [client.process.spawn(client.run()) for client in self.clients]  # type: ignore[attr-defined]
        await self._faults.run(self.seconds)
        await self._converge()
        self.ending = True
        await asyncio.wait(runs, timeout=HEALING_SECONDS_MAX)
        left = [client.name for client, run in zip(self.clients, runs, strict=True) if not run.done()]
        if left:
            self.checker.fail("liveness", f"all is well, but {left} do not come to an end")
        await asyncio.gather(*runs)
        await self._last_look()

    def _all_topics(self) -> list[Topic]:
        return [*self.topics, *(self.transactions.all_topics if self.variety.transactions else ())]

    def _small_cast(self) -> list[Client]:
        """Beside those who run transactions."""
        every = self._rng.choice((0.8, 1.2))
        topic = self.topics[0]
        cast: list[Client] = [
            IdempotentProducer(self, "p0", [topic], every),
            Observer(self, "o0", self._all_topics(), 0.8),
            Reader(self, "r0", topic, 0),
            Committer(self, "c0", topic, every),
            *self.transactions.cast(),
        ]
        if self.variety.moves:
            internal = ("__consumer_offsets", "__transaction_state")
            cast.append(Mover(self, "m0", self._all_topics(), 1.0, internal))
        return cast

    def _cast(self) -> list[Client]:
        if self.variety.transactions:
            return self._small_cast()
        rng = self._rng
        every = rng.choice((0.3, 0.8, 1.2))
        cast: list[Client] = [
            IdempotentProducer(self, f"p{n}", self.topics, every) for n in range(rng.randint(1, 2))
        ]
        cast.append(BareWriter(self, "w0", self.topics, every))
        cast.append(Observer(self, "o0", self.topics, 0.4))
        for topic in self.topics:
            for partition in range(topic.partitions):
                if rng.random() < 0.6:
                    cast.append(Reader(self, f"r-{topic.name}-{partition}", topic, partition))
        for topic in self.topics:
            if topic.kind == TRIMMED:
                cast.append(Trimmer(self, "d0", topic, 2.0))
        cast.extend(Committer(self, f"c{n}", self.topics[0], every) for n in range(rng.randint(1, 2)))
        if self.variety.moves:
            cast.append(Mover(self, "m0", self.topics, 1.0))
        if self.variety.recreates:
            cast.append(Recreator(self, "x0", every))
        return cast

    async def _converge(self) -> None:
        """When nothing is wrong, all brokers must soon say the same, and all of it must be so."""
        looker = Client(self, "looker")
        deadline = self.world.time() + HEALING_SECONDS_MAX
        told: object = None
        while self.world.time() < deadline:
            await asyncio.sleep(1.0)
            for machine in self.machines.values():
                if not machine.up:
                    machine.start()
            if any(machine.stopping for machine in self.machines.values()):
                told = "a broker that was told to stop has not ended"
                continue
            told = await looker.process.spawn(self._agree(looker))
            if told is None:
                return
        self.checker.fail("P2 converge", f"all is well for {HEALING_SECONDS_MAX} s, but {told}")

    async def _agree(self, looker: Client) -> object:
        """None if all brokers list all brokers, and leaders for all partitions; else what is wrong."""
        views = []
        for broker in self.brokers:
            try:
                answer = await looker.metadata(broker, None)
            except Unreachable as error:
                return f"b{broker}: {error}"
            if sorted(one.node_id for one in answer.brokers) != self.brokers:
                return f"b{broker} lists {[one.node_id for one in answer.brokers]}"
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.leader_id < 0:
                        return f"b{broker} knows no leader of {topic.name}-{part.partition_index}"
            views.append(sorted((str(one.name), one.topic_id) for one in answer.topics))
        return None if all(view == views[0] for view in views) else f"topics differ: {views}"

    async def _last_look(self) -> None:
        made_again = [client.topic for client in self.clients if isinstance(client, Recreator)]
        for topic in [*self.topics, *made_again]:
            for partition in range(topic.partitions):
                if (topic.id, partition) in self.checker.closed:
                    continue
                reader = Reader(self, f"last-{topic.name}-{partition}", topic, partition)
                end = None
                deadline = self.world.time() + HEALING_SECONDS_MAX
                while end is None or reader.position < end:
                    end = await reader.process.spawn(reader.step())
                    if self.world.time() > deadline:
                        self.checker.fail("liveness", f"{topic.name}-{partition} cannot be read to its end")
                key = (topic.id, partition)
                self.checker.log_is(key, reader.records, reader.start, end, reader.hurt)
                whole = key not in self.checker.hurt and not self.checker.cuts
                if topic.kind == BOUNDED and whole and reader.start and reader.read_bytes < BOUND_BYTES:
                    self.checker.fail(
                        "P3 retention", f"{topic.name}-{partition} is left with {reader.read_bytes} bytes"
                    )
        if self.variety.transactions:
            await self.transactions.last_look()
        await self._look_at_store()
        for client in self.clients:
            if isinstance(client, Committer):
                await client.process.spawn(self._last_commit(client))

    async def _look_at_store(self) -> None:
        """Nothing is gone that is needed; in some worlds, wait until all is gone that is not."""
        missing = self.truth.missing(self.checker.image) if not self.checker.hurt else []
        if missing:
            self.checker.fail("P3 deleted", f"{missing[0]}, is not there")
        if self._waits_for_space and (not self.checker.hurt or self.truth.only_segments_rot):
            deadline = self.world.time() + HEALING_SECONDS_MAX
            while told := self.truth.space(self.checker.image):
                if self.world.time() > deadline:
                    self.checker.fail("P6 space", f"all is well for {HEALING_SECONDS_MAX} s, but {told}")
                await asyncio.sleep(1.0)

    async def _last_commit(self, client: Committer) -> None:
        for attempt in range(100):
            try:
                coordinator = await client.coordinator(client.group, anew=attempt > 0)
                if coordinator >= 0 and await client.fetch(coordinator) is not None:
                    return
            except Unreachable:
                pass
            await client.pause(0.2)
        self.checker.fail("liveness", f"what {client.group} committed cannot be fetched")

    @contextmanager
    def _logging(self) -> Iterator[None]:
        def who() -> str:
            process = CURRENT.get(None)
            return process.name if process is not None else "world"

        def bug(text: str) -> None:
            self.checker.fail("bug", text)

        handler = TraceHandler(self.trace, who, bug)
        logger = logging.getLogger("penstock")
        before = (logger.level, logger.propagate)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]


LATE_MS_MAX = 2 * 24 * 3_600_000
"""By more than wall clocks are wrong."""

WAL_FILE_BYTES = 8192
"""Less than a person may set: files shall be rotated, adopted and deleted."""

SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "1000",
    "metadata.poll.interval.ms": "500",
    "leader.imbalance.check.interval.seconds": "2",
    "metadata.snapshot.entries": "15",
    "offsets.topic.num.partitions": "3",
    "log.segment.delete.delay.ms": "3000",
    "log.cleaner.backoff.ms": "2000",
    "log.retention.check.interval.ms": "1000",
    "auto.create.topics.enable": "false",
    "shutdown.drain.ms": "5000",
    "transaction.state.log.num.partitions": "2",
}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Memory is freed at known moments: letting go of a coroutine runs its `finally` blocks."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
