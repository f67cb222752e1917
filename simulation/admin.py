"""Administrators: they create and delete topics through any broker, and one makes the first topics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.wire.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.wire.errors import ErrorCode
from simulation.client import Client, Unreachable
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

CREATE_VERSION = 7
DELETE_VERSION = 6


class Admin(Client):
    def __init__(self, scene: Scene, name: str, every: float) -> None:
        super().__init__(scene, name)
        self._every = every
        self._numbers = 0
        self._mine: list[Topic] = []

    async def create(self, topic: Topic) -> bool:
        """True if the topic is there now, by this request or one before it."""
        broker = self.some_broker()
        configs = [CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()]
        wanted = CreatableTopic(
            name=topic.name, num_partitions=topic.partitions, replication_factor=-1, configs=configs
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=5000)
        self.note(f"create {topic.name} through b{broker}")
        answer = await self.ask(broker, request, CreateTopicsResponse, CREATE_VERSION)
        if [one.name for one in answer.topics] != [topic.name]:
            self.scene.checker.fail("P5 whole", f"b{broker} was asked to create {topic.name}: {answer}")
        code = answer.topics[0].error_code
        self.note(f"b{broker} said {self.code(code)} to the creation of {topic.name}")
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return False
        if code == ErrorCode.NONE:
            topic.id = answer.topics[0].topic_id
        if topic.name not in self.scene.views.deletions:
            self.scene.views.created.setdefault(topic.name, self.scene.world.time())
        return True

    async def delete(self, topic: Topic) -> bool:
        """True if the topic is gone."""
        broker = self.some_broker()
        self.scene.views.deletions.add(topic.name)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic.name)], timeout_ms=5000)
        self.note(f"delete {topic.name} through b{broker}")
        answer = await self.ask(broker, request, DeleteTopicsResponse, DELETE_VERSION)
        if [one.name for one in answer.responses] != [topic.name]:
            self.scene.checker.fail("P5 whole", f"b{broker} was asked to delete {topic.name}: {answer}")
        code = answer.responses[0].error_code
        self.note(f"b{broker} said {self.code(code)} to the deletion of {topic.name}")
        return code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def make(self, topics: list[Topic]) -> None:
        """Create topics, however often that takes, and learn their ids."""
        for topic in topics:
            while True:
                try:
                    if await self.create(topic):
                        answer = await self.metadata(self.some_broker(), [topic.name])
                        if answer.topics[0].error_code == 0:
                            topic.id = answer.topics[0].topic_id
                            break
                except Unreachable:
                    pass
                await self.pause(0.2)

    async def run(self) -> None:
        while not self.scene.ending:
            with contextlib.suppress(Unreachable):
                await self._step()
            await self.pause(self._every)

    async def _step(self) -> None:
        if self._mine and self.rng.random() < 0.35:
            topic = self.rng.choice(self._mine)
            if await self.delete(topic):
                self._mine.remove(topic)
            return
        if self._mine and self.rng.random() < 0.3:
            await self.create(self.rng.choice(self._mine))
            return
        if self.rng.random() < 0.4:
            names = None if self.rng.random() < 0.5 else list(self.scene.views.created)[-3:]
            await self.metadata(self.some_broker(), names)
            return
        self._numbers += 1
        topic = Topic(f"{self.name}-{self._numbers}", self.rng.randint(1, 3))
        self._mine.append(topic)
        await self.create(topic)
