"""The common part of all simulated clients: connect, ask, find leaders and coordinators, check answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from penstock.metadata.image import PartitionKey
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.headers import parse_response_header, request_header
from penstock.wire.schema import ApiMessage
from simulation.machines import PORT, host_of
from simulation.network import Link

if TYPE_CHECKING:
    from simulation.scene import Scene

R = TypeVar("R", bound=ApiMessage)

PATIENCE_SECONDS = 8.0
RECONNECT_SECONDS = 0.2
"""As clients do: who was refused does not knock again for a moment, whatever waits to be sent."""
METADATA_VERSION = 12
FIND_COORDINATOR_VERSION = 4
NO_LEADER = -1
GROUP, TRANSACTION = 0, 1
"""What a coordinator is wanted for."""


class Unreachable(Exception):
    """No answer. It is not known whether the request was handled."""


class Client:
    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self.name = name
        self.process = scene.world.process(name)
        self.rng = random.Random(f"{scene.seed}/{name}")
        self._links: dict[int, Link] = {}
        self._connecting: dict[int, asyncio.Lock] = {}
        self._refused: dict[int, float] = {}
        """Until when there is no use in knocking again."""
        self._correlation = 0
        self.leaders: dict[PartitionKey, int] = {}
        self.coordinators: dict[str, int] = {}

    # Asking.

    async def link(self, broker: int) -> Link:
        """A connection to this broker."""
        known = self._links.get(broker)
        if known is not None and not known.over:
            return known
        if self.scene.world.time() < self._refused.get(broker, 0.0):
            raise Unreachable("nobody listened there a moment ago")
        lock = self._connecting.setdefault(broker, asyncio.Lock())
        async with lock:
            link = self._links.get(broker)
            if link is None or link.over:
                try:
                    async with asyncio.timeout(2.0):
                        link = await self.scene.network.connect(self.process, host_of(broker))
                except (ConnectionError, TimeoutError) as error:
                    self._refused[broker] = self.scene.world.time() + RECONNECT_SECONDS
                    raise Unreachable(str(error)) from error
                self._links[broker] = link
            return link

    async def ask(
        self,
        broker: int,
        message: ApiMessage,
        response: type[R],
        version: int,
        patience: float = PATIENCE_SECONDS,
    ) -> R:
        """One request to one broker. Who gets no answer in time closes the connection."""
        link = await self.link(broker)
        return await self.ask_through(link, message, response, version, patience)

    async def ask_through(
        self,
        link: Link,
        message: ApiMessage,
        response: type[R],
        version: int,
        patience: float = PATIENCE_SECONDS,
    ) -> R:
        self._correlation += 1
        correlation = self._correlation
        answer = link.ask(
            request_header(message.api_key, version, correlation, self.name) + encode(message, version)
        )
        alarm = self.scene.world.call_later(patience, _give_up, answer)
        try:
            frame = memoryview(await answer)
        except TimeoutError:
            link.close()
            raise Unreachable("no answer in time") from None
        except ConnectionError as error:
            raise Unreachable(str(error)) from error
        finally:
            alarm.cancel()
        answered, body_at = parse_response_header(message.api_key, version, frame)
        if answered != correlation:
            self.scene.checker.fail(
                "P5 order", f"{link.host} answered request {answered} in place of {correlation}"
            )
        return decode(response, version, frame, body_at)[0]

    def some_broker(self) -> int:
        return self.rng.choice(self.scene.brokers)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(self.rng.uniform(0.5, 1.5) * seconds)

    def note(self, what: str) -> None:
        self.scene.trace.note(self.name, what)

    def code(self, number: int) -> str:
        return ErrorCode(number).name

    # Finding.

    async def metadata(self, broker: int, topics: Iterable[str] | None) -> MetadataResponse:
        """What a broker says of the cluster, checked against itself and the log."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        asked_at = self.scene.world.time()
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = await self.ask(broker, request, MetadataResponse, METADATA_VERSION)
        self.scene.views.metadata_told(broker, request, answer, asked_at)
        return answer

    async def refresh(self, topics: Iterable[str]) -> None:
        """Learn who leads, from whoever answers."""
        try:
            answer = await self.metadata(self.some_broker(), topics)
        except Unreachable:
            return
        for topic in answer.topics:
            for partition in topic.partitions:
                self.leaders[topic.topic_id, partition.partition_index] = partition.leader_id

    async def leader(self, topic: str, topic_id: bytes, partition: int, *, anew: bool) -> int:
        """Who leads this partition as far as this client knows; NO_LEADER if nobody."""
        key = (topic_id, partition)
        if anew or self.leaders.get(key, NO_LEADER) == NO_LEADER:
            await self.refresh([topic])
        return self.leaders.get(key, NO_LEADER)

    async def coordinator(self, group: str, *, anew: bool, kind: int = GROUP) -> int:
        """Of a group, or of a transactional id."""
        if anew or group not in self.coordinators:
            self.coordinators.pop(group, None)
            broker = self.some_broker()
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[group])
            answer = await self.ask(broker, request, FindCoordinatorResponse, FIND_COORDINATOR_VERSION)
            if [one.key for one in answer.coordinators] != [group]:
                self.scene.checker.fail(
                    "P5 whole", f"b{broker} was asked for the coordinator of {group}: {answer}"
                )
            found = answer.coordinators[0]
            if found.error_code:
                return NO_LEADER
            self.scene.views.named(broker, found.node_id, found.host, found.port, "coordinator")
            self.coordinators[group] = found.node_id
        return self.coordinators[group]


def _give_up(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


def address_is_right(broker: int, host: str, port: int) -> bool:
    return (host, port) == (host_of(broker), PORT)
