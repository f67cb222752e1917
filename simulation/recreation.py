"""A topic that is deleted and created again under its name, while it is written, read and committed to.

Its incarnations differ by id, and a client that means one says its id. Records and commits of a deleted one
may be gone or refused; those of the present one are promised as ever. The same producer goes on with the next
incarnation, from the first sequence number. A deletion whose answer is lost is asked for again. It names the
id, so it cannot mean the next incarnation if it comes late.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.wire.errors import ErrorCode
from simulation.admin import DELETE_VERSION, Admin
from simulation.checker import Rising
from simulation.client import Unreachable
from simulation.committers import Committer
from simulation.producers import IdempotentProducer, Identity
from simulation.readers import Reader
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

NAME = "again"
PARTITIONS = 2
LIFE_SECONDS_MAX = 6.0


class Recreator(Admin):
    def __init__(self, scene: Scene, name: str, every: float) -> None:
        super().__init__(scene, name, every)
        self.topic = Topic(NAME, PARTITIONS, by_id=True)
        """The incarnation that is there, or was last."""
        self._incarnations = 0
        self._producer = IdempotentProducer(scene, f"{name}-p", [], every)
        self._committer = IncarnationCommitter(scene, f"{name}-c", self.topic, every)

    async def run(self) -> None:
        self.scene.views.deletions.add(NAME)
        identity = await self._producer.process.spawn(self._producer.identify())
        committing = None
        while True:
            await self._make_incarnation()
            self._committer.begin(self.topic)
            committing = committing or self._committer.process.spawn(self._committer.run())
            users = self._users(identity)
            await self._live()
            if self.scene.ending:
                await asyncio.gather(*users, committing)
                return
            # From here on it may be gone at any time, whatever becomes of the request.
            self.scene.checker.deleted.add(self.topic.id)
            await self._until_deleted()
            await asyncio.gather(*users)

    async def _make_incarnation(self) -> None:
        deleted = self.scene.checker.deleted
        self._incarnations += 1
        self.topic = Topic(NAME, PARTITIONS, by_id=True)
        while True:
            await self.make([self.topic])
            if self.topic.id not in deleted:
                break  # Else a broker told of the incarnation before.
            await self.pause(0.2)
        self.note(f"incarnation {self._incarnations} is {self.topic.id[:4].hex()}")

    def _users(self, identity: Identity) -> list[asyncio.Task[None]]:
        producer, topic = self._producer, self.topic
        users = [producer.process.spawn(producer.lane(topic, index, identity)) for index in range(PARTITIONS)]
        reader = Reader(self.scene, f"{self.name}-r{self._incarnations}", topic, 0)
        users.append(reader.process.spawn(reader.run()))
        return users

    async def _live(self) -> None:
        until = self.scene.world.time() + self.rng.random() * LIFE_SECONDS_MAX
        while not self.scene.ending and self.scene.world.time() < until:
            await self.pause(0.2)

    async def _until_deleted(self) -> None:
        while True:
            try:
                if await self._delete_incarnation():
                    return
            except Unreachable:
                pass
            await self.pause(0.2)

    async def _delete_incarnation(self) -> bool:
        """True if it is gone."""
        broker, topic_id = self.some_broker(), self.topic.id
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=5000)
        self.note(f"delete {topic_id[:4].hex()} through b{broker}")
        answer = await self.ask(broker, request, DeleteTopicsResponse, DELETE_VERSION)
        if [one.topic_id for one in answer.responses] != [topic_id]:
            self.scene.checker.fail("P5 whole", f"b{broker} was asked to delete {topic_id.hex()}: {answer}")
        code = answer.responses[0].error_code
        self.note(f"b{broker} said {self.code(code)} to the deletion of {topic_id[:4].hex()}")
        if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.REQUEST_TIMED_OUT):
            self.scene.checker.fail("P5 code", f"b{broker} answered {self.code(code)} to a deletion")
        return code != ErrorCode.REQUEST_TIMED_OUT


class IncarnationCommitter(Committer):
    """A commit for one incarnation is promised as long as the incarnation is not deleted."""

    _incarnation = b""
    _before = 0
    """The last offset that was committed to another incarnation."""

    def begin(self, topic: Topic) -> None:
        self._topic = topic

    def _began_again(self) -> bool:
        cut = super()._began_again()
        if self._incarnation == self._topic.id and self._topic.id not in self.scene.checker.deleted:
            return cut
        self._incarnation = self._topic.id
        self._before = self._offset
        self._told = Rising()
        return True

    def _check(self, found: int, metadata: str, asked_at: float, by: int) -> None:
        # Offsets are fetched by name: until there is one of this incarnation, another's may still be told.
        if found > self._before or self._told.known_before(asked_at):
            super()._check(found, metadata, asked_at, by)
