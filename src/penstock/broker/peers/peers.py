"""Asks the other brokers of the cluster, on the broker's loop.

A broker is reached at its address in the image. Its connection is made when it is first asked, and again
after it broke; requests to it do not wait for each other. A caller that gets no answer in time closes the
connection, since nobody can tell whether the other end is still there. A broker that could not be reached is
left alone for a moment, longer each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.peers.link import Dial, Link, dial
from penstock.logging_in import LoginError, Step
from penstock.wire.api.api_versions import ApiVersionsResponse
from penstock.wire.asking import GREETINGS, Question, Versions
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.schema import ApiMessage

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.metadata.image import BrokerInfo, ClusterImage

R = TypeVar("R", bound=ApiMessage)

Steps = Generator[Step, ApiMessage, int]
"""A login: requests, and their answers sent in."""
ANSWER_SECONDS = 30.0
"""How long an answer is waited for; Kafka's request.timeout.ms."""
IN_FLIGHT_MAX = 100
"""Requests to one broker that wait for their answers. Further ones wait for their turn."""
PAUSE_FIRST_SECONDS = 0.05
PAUSE_MAX_SECONDS = 1.0
"""How long a broker is left alone that could not be reached; doubled from the first to the last."""


class PeerError(Exception):
    """No answer came from another broker. Whether it carried the request out is not known."""


class Peers:
    def __init__(
        self,
        name: str,
        listener: str,
        image: Callable[[], ClusterImage],
        clock: Clock,
        dial: Dial = dial,
        steps: Callable[[], Steps] | None = None,
    ) -> None:
        """`name`: what the others know this broker by. `listener`: the one of theirs to connect to. `steps`
        begins a login there, if it asks for one."""
        self._steps = steps
        self._name = name
        self._listener = listener
        self._image = image
        self._clock = clock
        self._dial = dial
        self._peers: dict[int, _Peer] = {}

    async def ask(
        self, broker: int, request: ApiMessage, response: type[R], *, seconds: float = ANSWER_SECONDS
    ) -> R:
        """Send a request to a broker and wait for its answer. PeerError if there is none."""
        peer = self._peer(broker)
        try:
            async with asyncio.timeout(seconds):
                return await peer.ask(request, response)
        except TimeoutError as error:
            peer.close()
            raise PeerError(f"Broker {broker} did not answer in {seconds:g} s.") from error
        except (OSError, WireError) as error:
            raise PeerError(f"Broker {broker} did not answer: {error}.") from error

    async def stop(self) -> None:
        """Whoever waits is told that no answer came."""
        while self._peers:
            self._peers.popitem()[1].close()

    def _peer(self, broker: int) -> _Peer:
        image = self._image()
        info = image.brokers.get(broker)
        if info is None or info.fenced:
            raise PeerError(f"Broker {broker} is not in the cluster.")
        peer = self._peers.get(broker)
        if peer is None or peer.epoch != info.epoch:
            self._forget(image)
            peer = self._peers[broker] = self._new(info)
        return peer

    def _new(self, info: BrokerInfo) -> _Peer:
        listener = info.listener(self._listener)
        if listener is None:
            raise PeerError(f"Broker {info.id} has no listener {self._listener}.")
        host, port = listener.host, listener.port
        return _Peer(self._name, info.epoch, lambda: self._dial(host, port), self._clock, self._steps)

    def _forget(self, image: ClusterImage) -> None:
        """Close what belongs to incarnations that are over."""
        for broker, peer in list(self._peers.items()):
            info = image.brokers.get(broker)
            if info is None or info.epoch != peer.epoch:
                del self._peers[broker]
                peer.close()


class _Peer:
    """One incarnation of another broker."""

    def __init__(
        self,
        name: str,
        epoch: int,
        connect: Callable[[], Awaitable[Link]],
        clock: Clock,
        steps: Callable[[], Steps] | None,
    ) -> None:
        self._steps = steps
        self._login_ends = 0.0
        """Shortly before it another connection takes its place; 0: it has no end."""
        self.epoch = epoch
        self._name = name
        self._connect = connect
        self._clock = clock
        self._link: Link | None = None
        self._versions: Versions | None = None
        self._connecting = asyncio.Lock()
        self._turns = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._correlation_id = 0
        self._pause_seconds = 0.0
        self._alone_until = 0.0

    async def ask(self, request: ApiMessage, response: type[R]) -> R:
        async with self._turns:
            link, versions = await self._connected()
            version = versions.newest(request)
            if version is None:
                raise WireError(f"it does not serve {type(request).__name__}")
            return await self._exchange(link, request, response, version)

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    async def _connected(self) -> tuple[Link, Versions]:
        async with self._connecting:
            link, versions = self._link, self._versions
            if link is not None and versions is not None and not link.over:
                if not self._login_ends or self._clock.monotonic() < self._login_ends:
                    return link, versions
                # What it was asked is answered there.
                asyncio.get_running_loop().call_later(ANSWER_SECONDS, link.close)
                self._link = None
            if self._clock.monotonic() < self._alone_until:
                raise ConnectionRefusedError("it could not be reached a moment ago")
            try:
                link, versions = await self._reach()
            except BaseException:
                pause = min(max(self._pause_seconds * 2, PAUSE_FIRST_SECONDS), PAUSE_MAX_SECONDS)
                self._pause_seconds = pause
                self._alone_until = self._clock.monotonic() + pause
                self.close()
                raise
            self._pause_seconds = 0.0
            self._versions = versions
            return link, versions

    async def _reach(self) -> tuple[Link, Versions]:
        self._link = link = await self._connect()
        for greeting, version in GREETINGS:
            answer = await self._exchange(link, greeting, ApiVersionsResponse, version)
            if answer.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
        if answer.error_code:
            raise WireError(f"it greeted with {answer.error_code}")
        versions = Versions(answer)
        if self._steps is not None:
            await self._log_in(link, versions, self._steps())
        return link, versions

    async def _log_in(self, link: Link, versions: Versions, steps: Steps) -> None:
        try:
            request, response = next(steps)
            while True:
                version = versions.newest(request)
                if version is None:
                    raise WireError(f"it does not serve {type(request).__name__}")
                answer = await self._exchange(link, request, response, version)
                request, response = steps.send(answer)
        except StopIteration as done:
            self._login_ends = self._clock.monotonic() + 0.8 * done.value / 1000 if done.value else 0.0
        except LoginError as error:
            raise ConnectionRefusedError(str(error)) from None

    async def _exchange(self, link: Link, request: ApiMessage, response: type[R], version: int) -> R:
        self._correlation_id = (self._correlation_id + 1) % 2**31
        question = Question(request, response, version, self._correlation_id, self._name)
        return question.read(memoryview(await link.ask(question.frame)))
