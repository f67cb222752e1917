"""Shared storage as brokers meet it: slow at times, out at times, and not always telling what it did.

`SharedStore` is the truth, which nothing happens to. `StoreView` is one broker's way to it. A request goes
out, takes effect, and its answer comes back; each of these may be late, and either message may be lost. A
request whose sender was told that it failed may still take effect, much later: the sender has gone on by
then, or died. The effects are the store's own: they happen whether the sender is paused or dead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from penstock.storage.memory import MemoryStore
from penstock.storage.objects import ObjectInfo, StoreUnavailableError
from penstock.wire.buffers import Buffer
from simulation.loop import Process, World
from simulation.trace import Trace

OnEffect = Callable[[str, str, bytes], None]
"""Called with operation, key and contents after each write took effect."""


class Weather(msgspec.Struct):
    """How a store is at the moment."""

    latency: float = 0.004
    """Seconds that a request and its answer take together, typically."""
    refused: float = 0.0
    """The share of requests that fail without an effect."""
    lost: float = 0.0
    """The share of requests that take effect, but whose answer does not come."""
    late: float = 0.0
    """The share of writes that take effect long after their sender was told that they failed."""
    late_seconds: float = 20.0
    out: bool = False
    """Nothing gets through."""
    stops: float = 0.0
    """How often a process is stopped between two system calls; half of the time for up to `stop_seconds`."""
    stop_seconds: float = 6.0
    troubled_at: float = -1e9
    """When something last went wrong."""


class SharedStore:
    """The contents, and who watches them change."""

    def __init__(self, world: World, trace: Trace) -> None:
        self.world = world
        self.trace = trace
        self.memory = MemoryStore()
        self.process = world.process("store")
        self.on_effect: OnEffect = lambda operation, key, contents: None

    def create(self, key: str, contents: bytes) -> bool:
        if key in self.memory.objects:
            return False
        self.memory.objects[key] = contents
        self.on_effect("create", key, contents)
        return True

    def put(self, key: str, contents: bytes) -> None:
        self.memory.objects[key] = contents
        self.on_effect("put", key, contents)

    def delete(self, key: str) -> None:
        if self.memory.objects.pop(key, None) is not None:
            self.on_effect("delete", key, b"")


class StoreView:
    """The port, for one process of a broker."""

    def __init__(self, shared: SharedStore, owner: Process, weather: Weather, rng: random.Random) -> None:
        self._shared = shared
        self._world = shared.world
        self._owner = owner
        self._weather = weather
        self._rng = rng

    async def create(self, key: str, *parts: Buffer) -> bool:
        contents = b"".join(parts)
        created: bool = await self._request(
            f"create {key} {len(contents)}", lambda: self._shared.create(key, contents), writes=True
        )
        return created

    async def put(self, key: str, *parts: Buffer) -> None:
        contents = b"".join(parts)
        await self._request(f"put {key}", lambda: self._shared.put(key, contents), writes=True)

    async def get(self, key: str) -> bytes | None:
        found: bytes | None = await self._request(f"get {key}", lambda: self._shared.memory.objects.get(key))
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._request(f"read {key} {start}+{length}", lambda: None)
        # Nothing that is read by range is ever replaced, so the moment does not matter.
        return await self._shared.memory.get_range(key, start, length)

    async def delete(self, key: str) -> None:
        await self._request(f"delete {key}", lambda: self._shared.delete(key), writes=True)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        objects = self._shared.memory.objects
        found = await self._request(
            f"list {prefix}",
            lambda: sorted(ObjectInfo(k, len(v)) for k, v in objects.items() if k.startswith(prefix)),
        )
        for info in found:
            yield info

    async def close(self) -> None:
        """Nothing is held open."""

    def _request(self, what: str, effect: Callable[[], Any], *, writes: bool = False) -> asyncio.Future[Any]:
        weather, rng, world = self._weather, self._rng, self._world
        answer: asyncio.Future[Any] = world.create_future()
        now = world.time()
        there = now + rng.random() * weather.latency
        back = there + rng.random() * weather.latency
        chance = rng.random()
        fate = ""
        if weather.out or chance < weather.refused:
            fate = "refused"
        elif chance < weather.refused + weather.lost:
            fate = "answer lost"
        elif writes and chance < weather.refused + weather.lost + weather.late:
            fate = "late"
            there = now + rng.random() * weather.late_seconds
        if fate:
            weather.troubled_at = now
            back = now + weather.latency + rng.random() ** 3 * 3.0
        self._shared.trace.note(self._owner.name, f"{what} {fate}" if fate else what)
        deliver = self._shared.process.post_at
        if fate == "refused":
            deliver(back, self._fail, answer, what)
            return answer
        if fate == "answer lost":
            deliver(there, self._act, effect, None, what)
            deliver(max(back, there), self._fail, answer, what)
        elif fate == "late":
            deliver(there, self._act, effect, None, what)
            deliver(back, self._fail, answer, what)
        else:
            deliver(there, self._act, effect, (answer, back), what)
        return answer

    def _act(
        self, effect: Callable[[], Any], answer: tuple[asyncio.Future[Any], float] | None, what: str
    ) -> None:
        result = effect()
        if answer is None:
            self._shared.trace.note("store", f"{what}, unheard by {self._owner.name}")
            return
        future, back = answer
        self._shared.process.post_at(back, _resolve, future, result)

    def _fail(self, answer: asyncio.Future[Any], what: str) -> None:
        if not answer.done():
            answer.set_exception(StoreUnavailableError(f"the store did not answer: {what}"))
            answer.exception()


def _resolve(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)
