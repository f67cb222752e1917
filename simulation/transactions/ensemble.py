"""The transactional part of a world: its topics and its cast, and what must hold when all is over.

When nothing is wrong any more and every client has ended: no transaction is open, the last stable offset of
each partition is its end, what was committed is all there and nothing else, each input was copied once, and
the store alone tells the same as the brokers.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from conformance.histories.checking import check
from conformance.histories.history import Outcome

from penstock.wire.api.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from simulation.client import Client, Unreachable
from simulation.topics import COMPACTED, PLAIN, TRIMMED, Topic
from simulation.transactions.copiers import Copier
from simulation.transactions.decisions import Decisions
from simulation.transactions.notes import Notes, place_of
from simulation.transactions.producers import Bystander, TransactionalProducer
from simulation.transactions.readers import IsolatedReader, StableObserver
from simulation.transactions.removal import Remover
from simulation.transactions.session import TIMEOUT_MS_MAX, Id
from simulation.transactions.store_reader import StoreReader
from simulation.trimmers import Trimmer

if TYPE_CHECKING:
    from simulation.scene import Scene

OVER_SECONDS_MAX = 40.0
"""After the last client has ended: longer than the shortest time-outs and all clocks' differences."""
LIST_VERSION = 1
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Ensemble:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._rng = rng = random.Random(f"{scene.seed}/transactions")
        self.notes = Notes(scene)
        if scene.variety.transactions:
            scene.checker.on_flush.append(Decisions(scene.checker.fail).look)
        kind = rng.choice((PLAIN, PLAIN, COMPACTED, TRIMMED))
        self.topics = [Topic("x0", rng.randint(1, 3)), Topic("x1", rng.randint(1, 2), kind)]
        """The first is the source of copies."""
        self.target = Topic("x2", rng.randint(1, 2))
        self.doomed = Topic("x3", 1) if rng.random() < 0.25 else None
        """One that is deleted in the midst of transactions."""

    @property
    def all_topics(self) -> list[Topic]:
        return [*self.topics, self.target, *([self.doomed] if self.doomed is not None else ())]

    def cast(self) -> list[Client]:
        scene, rng = self._scene, self._rng
        every = rng.choice((0.2, 0.5))
        written = [*self.topics, *([self.doomed] if self.doomed is not None else ())]
        cast: list[Client] = [
            TransactionalProducer(scene, name, id, written, every) for name, id in self._producers()
        ]
        for name, id, partition in self._copiers():
            cast.append(Copier(scene, name, id, (self.topics[0], partition), self.target, every))
        cast.append(Bystander(scene, "by", self.topics, 2 * every))
        cast.append(StableObserver(scene, "so", [*self.topics, self.target], 0.8))
        for topic in (*self.topics, self.target):
            for committed in (True, False):
                if rng.random() < (0.7 if committed else 0.25):
                    name = f"{'rc' if committed else 'ru'}-{topic.name}"
                    partition = rng.randrange(topic.partitions)
                    cast.append(IsolatedReader(scene, name, topic, partition, committed=committed))
        if rng.random() < 0.5:
            topic = rng.choice((*self.topics, self.target))
            cast.append(StoreReader(scene, f"sr-{topic.name}", topic, rng.randrange(topic.partitions)))
        if self.topics[1].kind == TRIMMED:
            cast.append(Trimmer(scene, "xd", self.topics[1], 2.0))
        if self.doomed is not None:
            cast.append(Remover(scene, "xr", self.doomed))
        return cast

    def _producers(self) -> list[tuple[str, Id]]:
        found = []
        for number in range(self._rng.randint(1, 2)):
            found.append((f"tp{number}", Id(f"tx-p{number}", self._version(), TIMEOUT_MS_MAX, False)))
        found += self._sharing("tz")
        if self._rng.random() < 0.3:
            timeout_ms = self._rng.choice((1000, 3000))
            found.append(("tt", Id("tx-tt", self._version(), timeout_ms, False)))
        return found

    def _copiers(self) -> list[tuple[str, Id, int]]:
        if self._rng.random() < 0.4:
            partition = self._rng.randrange(self.topics[0].partitions)
            return [(name, id, partition) for name, id in self._sharing("tc")]
        return [
            (f"tc{index}", Id(f"tx-c{index}", self._version(), TIMEOUT_MS_MAX, False), index)
            for index in range(self.topics[0].partitions)
        ]

    def _sharing(self, name: str) -> list[tuple[str, Id]]:
        """Two clients with one id, not always of one version."""
        if self._rng.random() < 0.4:
            return []
        versions = self._version(), self._version()
        return [
            (f"{name}{which}", Id(f"tx-{name}", version, TIMEOUT_MS_MAX, True))
            for which, version in zip("ab", versions, strict=True)
        ]

    def _version(self) -> int:
        return self._rng.choice((1, 2, 2))

    # The end.

    async def last_look(self) -> None:
        scene = self._scene
        if self.doomed is not None and self.doomed.id in scene.checker.deleted:
            self.notes.gone(self.doomed)
        looker = Client(scene, "looker-x")
        await looker.process.spawn(self._until_over(looker))
        for topic in self.all_topics:
            if topic.id not in scene.checker.deleted:
                for partition in range(topic.partitions):
                    await self._read_whole(topic, partition)
                    await self._read_store(topic, partition)
        for client in scene.clients:
            if isinstance(client, Copier):
                await client.process.spawn(client.stable_offset())
        self.notes.thin(self.all_topics)
        findings = check(self.notes.history)
        for finding in findings:
            scene.checker.fail("T history", str(finding))
        if not findings:
            self._check_copies()

    async def _until_over(self, looker: Client) -> None:
        """No coordinator knows of an open transaction."""
        scene = self._scene
        deadline = scene.world.time() + OVER_SECONDS_MAX
        while True:
            told = await self._open(looker)
            if not told:
                return
            if scene.world.time() > deadline:
                scene.checker.fail("T open", f"all clients have ended, but {told}")
                return
            await looker.pause(1.0)

    async def _open(self, looker: Client) -> str:
        """What is still open; "" if nothing is."""
        for broker in self._scene.brokers:
            try:
                answer = await looker.ask(
                    broker, ListTransactionsRequest(), ListTransactionsResponse, LIST_VERSION
                )
            except Unreachable as error:
                return f"b{broker}: {error}"
            if answer.error_code:
                return f"b{broker} answers {looker.code(answer.error_code)} to ListTransactions"
            left = [
                f"{one.transactional_id} is {one.transaction_state}"
                for one in answer.transaction_states
                if one.transaction_state in OPEN
            ]
            if left:
                return f"b{broker}: {', '.join(left)}"
        return ""

    async def _read_whole(self, topic: Topic, partition: int) -> None:
        scene, key = self._scene, (topic.id, partition)
        for committed in (False, True):
            name = f"last-{'rc' if committed else 'ru'}-{place_of(topic, partition)}"
            reader = IsolatedReader(scene, name, topic, partition, committed=committed)
            deadline = scene.world.time() + OVER_SECONDS_MAX
            end = None
            while end is None or reader.position < end or reader.stable < end:
                end = await reader.process.spawn(reader.step())
                if scene.world.time() > deadline:
                    place = place_of(topic, partition)
                    told = f"is stable to {reader.stable} and ends at {end}"
                    scene.checker.fail("T hanging", f"{place} was read to {reader.position}, {told}")
                    return
            reader.reading.whole = True
            if topic.kind == PLAIN and not committed:
                records = reader.records | dict.fromkeys(reader.markers, b"")
                scene.checker.log_is(key, records, reader.start, end, [])
            if topic.kind == COMPACTED and committed:
                self._check_newest(topic, partition, reader.records)

    async def _read_store(self, topic: Topic, partition: int) -> None:
        """The store tells what the brokers told."""
        scene = self._scene
        told = scene.transactions.notes.history.readings[-1]
        assert told.whole and told.committed
        reader = StoreReader(scene, f"last-sr-{place_of(topic, partition)}", topic, partition)
        deadline = scene.world.time() + OVER_SECONDS_MAX
        while await reader.process.spawn(reader.step()) is None:
            if scene.world.time() > deadline:
                scene.checker.fail("T store", f"{told.place} cannot be read from the store")
                return
            await reader.pause(1.0)
        reader.reading.whole = True
        start = max(told.start, reader.reading.start)
        there, here = (
            {(one.offset, one.value) for one in reading.records if one.offset >= start}
            for reading in (told, reader.reading)
        )
        if there != here and topic.kind != COMPACTED:
            differ = sorted(there ^ here)[:4]
            scene.checker.fail("T store", f"brokers and store differ in {told.place}: {differ}")

    def _check_newest(self, topic: Topic, partition: int, records: dict[int, bytes]) -> None:
        """Compaction keeps the newest committed record of each key."""
        place = place_of(topic, partition)
        newest: dict[bytes, tuple[int, str]] = {}
        for transaction in self.notes.history.transactions:
            if transaction.outcome is not Outcome.COMMITTED:
                continue
            for one in transaction.appends:
                if one.place == place and one.offset is not None:
                    key = self._scene.checker.keys[one.value.encode()]
                    newest[key] = max(newest.get(key, (-1, "")), (one.offset, one.value))
        for key, (offset, value) in newest.items():
            later = [
                at for at, one in records.items() if at > offset and self._scene.checker.keys[one] == key
            ]
            if offset not in records and not later:
                self._scene.checker.fail("T lost", f"{value} at {place}@{offset} was the newest of {key!r}")

    def _check_copies(self) -> None:
        """Each record that a group consumed has one copy that readers see."""
        history = self.notes.history
        target = {place_of(self.target, index) for index in range(self.target.partitions)}
        last = [one for one in history.readings if one.whole and one.committed]
        copies: dict[tuple[str, int], set[str]] = {}
        for reading in last:
            if reading.place in target:
                for seen in reading.records:
                    copies.setdefault(self.notes.sources[seen.value], set()).add(seen.value)
        originals = {one.place: {seen.offset for seen in one.records} for one in last}
        for source, found in copies.items():
            if len(found) > 1 or source[1] not in originals[source[0]]:
                self._scene.checker.fail("T copies", f"{sorted(found)} are copies of {source}")
        reached: dict[str, int] = {}
        for told in history.offsets:
            reached[told.place] = max(reached.get(told.place, -1), told.offset)
        for place, end in reached.items():
            missing = [at for at in originals[place] if at < end and (place, at) not in copies]
            if missing:
                self._scene.checker.fail("T copies", f"{place}@{missing[0]} was consumed, and has no copy")
