"""Clients that write in transactions, and one that writes beside them.

Those that share an id shut each other out: one begins while the other is in the middle of something, and goes
on until it is told. Some die in the middle of a transaction, and their time-out ends it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from conformance.histories.history import Transaction

from simulation.client import NO_LEADER, Unreachable
from simulation.producers import TRY_AGAIN, Writer
from simulation.topics import Topic
from simulation.transactions.session import TIMEOUT_MS_MAX, Abortable, Fatal, Id, Session

if TYPE_CHECKING:
    from simulation.scene import Scene

PLACES_MAX = 3
BARE_PATIENCE_SECONDS = 20.0


class TransactionalProducer(Session):
    def __init__(self, scene: Scene, name: str, id: Id, topics: list[Topic], every: float) -> None:
        super().__init__(scene, name, id)
        self._topics = topics
        self._every = every

    async def run(self) -> None:
        if self.id.shared:
            await self.pause(2.0)
        while True:
            try:
                # Also after the last failure: whatever it left open is aborted by that.
                await self.initialise()
                while not self.scene.ending:
                    await self._one()
                    await self.pause(self._every)
                return
            except Fatal as error:
                self.note(f"begins anew after {error}")
                await self.pause(1.0)

    def _dies(self) -> bool:
        """In the middle of a transaction at times; then it comes back."""
        return self.id.timeout_ms < TIMEOUT_MS_MAX and self.rng.random() < 0.2

    async def _one(self) -> None:
        """One transaction, whatever becomes of it."""
        transaction = self.scene.transactions.notes.begun(self.name)
        places = self._places()
        try:
            if self.id.version == 1:
                await self.add(places)
            for _ in range(self.rng.choice((1, 1, 2))):
                await self._write(transaction, places)
                if self.rng.random() < 0.1:
                    await self.pause(self.rng.choice((0.5, 3.0)))
            if self._dies():
                raise Fatal("dying")
            await self.end(transaction, commit=self.rng.random() < 0.7)
        except Abortable as error:
            self.note(f"aborts {transaction.name}: {error}")
            await self.abort(transaction)
        if self.unsure and self.id.version == 1:
            await self.initialise()

    def _places(self) -> list[tuple[Topic, int]]:
        deleted = self.scene.checker.deleted
        every = [
            (topic, index)
            for topic in self._topics
            if topic.id not in deleted
            for index in range(topic.partitions)
        ]
        return self.rng.sample(every, self.rng.randint(1, min(PLACES_MAX, len(every))))

    async def _write(self, transaction: Transaction, places: list[tuple[Topic, int]]) -> None:
        """A batch to each partition at once; all are answered before anything else happens."""
        sends = [
            self.send(transaction, topic, partition, self.next_batch(topic, partition))
            for topic, partition in places
        ]
        results = await asyncio.gather(*sends, return_exceptions=True)
        failures = [one for one in results if one is not None]
        for kind in (Fatal, Abortable, BaseException):
            for failure in failures:
                if isinstance(failure, kind):
                    raise failure


class Bystander(Writer):
    """Writes records outside of transactions, each once, among those of transactions."""

    def __init__(self, scene: Scene, name: str, topics: list[Topic], every: float) -> None:
        super().__init__(scene, name)
        self._topics = topics
        self._every = every

    async def run(self) -> None:
        while not self.scene.ending:
            topic = self.rng.choice(self._topics)
            partition = self.rng.randrange(topic.partitions)
            leader = await self.leader(topic.name, topic.id, partition, anew=self.rng.random() < 0.3)
            if leader != NO_LEADER and topic.id not in self.scene.checker.deleted:
                await self._send(leader, topic, partition)
            await self.pause(self._every)

    async def _send(self, leader: int, topic: Topic, partition: int) -> None:
        notes = self.scene.transactions.notes
        batch = self.batch(topic, partition, -1, -1, -1)
        alone = notes.begun("")
        notes.sent(alone, topic, partition, batch.values)
        notes.commit_asked(alone)
        asked_at = self.scene.world.time()
        try:
            told = await self.produce(leader, topic, partition, batch, BARE_PATIENCE_SECONDS)
        except Unreachable:
            self.leaders.pop((topic.id, partition), None)
            return
        if told.error_code == 0:
            self.acknowledged(topic, partition, batch, told.base_offset, asked_at, leader)
            notes.acknowledged(alone, batch.values, told.base_offset)
            notes.committed(alone)
        else:
            self.leaders.pop((topic.id, partition), None)
            if told.error_code not in TRY_AGAIN:
                name = self.code(told.error_code)
                self.scene.checker.fail("P3 refused", f"b{leader} answered {name} to {batch.values[0]!r}")
