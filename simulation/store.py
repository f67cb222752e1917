"""Shared storage as brokers meet it: slow at times, out at times, and not always telling what it did.

`SharedStore` is the truth; only rot happens to it. `StoreView` is one broker's way to it. A request goes out,
takes effect, and its answer comes back. Each of these may be late, and either message may be lost. A request
that was reported as failed may still take effect, much later, and an answered one may take effect again. The
sender has gone on by then, or died, or deleted the object. The effects are the store's own: they happen even
if the sender is paused or dead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

from penstock.storage.stores import objects
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import (
    ObjectInfo,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from penstock.wire.buffers import Buffer
from simulation.copies import Copies
from simulation.loop import Process, World
from simulation.trace import Trace
from simulation.weather import Weather

LISTED_SECONDS = 20.0
"""By so much a list may be late."""

OnEffect = Callable[[str, str, bytes], None]
"""Called with operation, key and contents after each write took effect."""

Refused: type[StoreError] = getattr(objects, "StoreRefusedError", StoreError)


class SharedStore:
    """The contents, and who watches them change."""

    def __init__(self, world: World, trace: Trace, name: str = "store") -> None:
        self.world = world
        self.trace = trace
        self.memory = MemoryStore()
        self.process = world.process(name)
        self.on_effect: OnEffect = lambda operation, key, contents: None
        self.copies = Copies()
        self._named: dict[str, tuple[float, int | None]] = {}
        """When a name appeared or went, and the size of its object before."""

    def create(self, key: str, contents: bytes) -> bool:
        if key in self.memory.objects:
            return False
        self._named[key] = self.world.time(), None
        self.memory.objects[key] = contents
        self.on_effect("create", key, contents)
        return True

    def put(self, key: str, contents: bytes) -> None:
        before = self.memory.objects.get(key)
        if before is None:
            self._named[key] = self.world.time(), None
        else:
            self.copies.replace(key, before)
        self.memory.objects[key] = contents
        self.on_effect("put", key, contents)

    def delete(self, key: str) -> None:
        before = self.memory.objects.pop(key, None)
        if before is not None:
            self._named[key] = self.world.time(), len(before)
            self.copies.delete(key, before)
            self.on_effect("delete", key, b"")

    def listed(self, prefix: str, stale: Callable[[], bool]) -> list[ObjectInfo]:
        """What a list says: of names that came or went lately, `stale` decides whether it knows."""
        found = {key: len(data) for key, data in self.memory.objects.items() if key.startswith(prefix)}
        since = self.world.time() - LISTED_SECONDS
        for key, (changed, before) in self._named.items():
            if key.startswith(prefix) and changed > since and stale():
                if before is None:
                    found.pop(key, None)
                else:
                    found[key] = before
        return sorted(ObjectInfo(key, size) for key, size in found.items())

    def rot(self, key: str, at: int, bit: int) -> None:
        """One bit is not what it was."""
        data = bytearray(self.memory.objects[key])
        data[at] ^= 1 << bit
        self.memory.objects[key] = bytes(data)


class StoreView:
    """The port, for one process of a broker."""

    local = None
    url = "etcd://simulated:2379/penstock"
    """As which it is known where it holds metadata alone."""

    def __init__(self, shared: SharedStore, owner: Process, weather: Weather, rng: random.Random) -> None:
        self._shared = shared
        self._world = shared.world
        self._owner = owner
        self._weather = weather
        self._rng = rng

    async def create(self, key: str, *parts: Buffer) -> bool:
        contents = b"".join(parts)
        created: bool = await self._request(
            f"create {key} {len(contents)}", key, lambda: self._shared.create(key, contents), writes=True
        )
        return created

    async def put(self, key: str, *parts: Buffer) -> None:
        contents = b"".join(parts)
        await self._request(f"put {key}", key, lambda: self._shared.put(key, contents), writes=True)

    async def get(self, key: str) -> bytes | None:
        stored = self._shared.memory.objects
        found: bytes | None = await self._request(f"get {key}", key, lambda: stored.get(key))
        return self._seen(found) if found else found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._request(f"read {key} {start}+{length}", key, lambda: None)
        # Nothing that is read by range is ever replaced, so the moment does not matter.
        return self._seen(await self._shared.memory.get_range(key, start, length))

    async def size(self, key: str) -> int | None:
        stored = self._shared.memory.objects
        size: int | None = await self._request(
            f"size {key}", key, lambda: len(stored[key]) if key in stored else None
        )
        return size

    async def delete(self, key: str) -> None:
        await self._request(f"delete {key}", key, lambda: self._shared.delete(key), writes=True)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        found = await self._request(
            f"list {prefix}", prefix, lambda: self._shared.listed(prefix, self._is_stale)
        )
        for info in found:
            yield info

    async def close(self) -> None:
        """Nothing is held open."""

    def _is_stale(self) -> bool:
        """Whether a list does not know of a change."""
        stale = self._weather.stale
        return bool(stale) and self._rng.random() < stale

    def _seen(self, read: bytes) -> bytes:
        """What arrives of what is stored."""
        weather, rng = self._weather, self._rng
        if weather.flips and read and rng.random() < weather.flips:
            weather.troubled_at = self._world.time()
            hurt = bytearray(read)
            hurt[rng.randrange(len(hurt))] ^= 1 << rng.randrange(8)
            return bytes(hurt)
        return read

    def _request(
        self, what: str, key: str, effect: Callable[[], Any], *, writes: bool = False
    ) -> asyncio.Future[Any]:
        weather, rng, world = self._weather, self._rng, self._world
        answer: asyncio.Future[Any] = world.create_future()
        now = world.time()
        there = now + rng.random() * weather.latency
        back = there + rng.random() * weather.latency
        fate = "" if weather.fair else self._fate(key, writes)
        deliver = self._shared.process.post_at
        self._shared.trace.note(self._owner.name, f"{what} {fate}" if fate else what)
        if fate and fate != "twice":
            weather.troubled_at = now
            back = now + weather.latency + rng.random() ** 3 * 3.0
        match fate:
            case "denied":
                deliver(back, _fail, answer, Refused(f"the store does not allow this: {what}"))
            case "full":
                deliver(back, _fail, answer, StoreFullError(f"there is no room: {what}"))
            case "read only":
                deliver(back, _fail, answer, StoreReadOnlyError(f"nothing is written: {what}"))
            case "refused":
                deliver(back, _fail, answer, _unavailable(what))
            case "answer lost":
                deliver(there, self._act, effect, None, what)
                deliver(max(back, there), _fail, answer, _unavailable(what))
            case "late":
                deliver(now + rng.random() * weather.late_seconds, self._act, effect, None, what)
                deliver(back, _fail, answer, _unavailable(what))
            case "twice":
                deliver(there, self._act, effect, (answer, back), what)
                deliver(back + rng.random() * weather.late_seconds, self._act, effect, None, what)
            case _:
                deliver(there, self._act, effect, (answer, back), what)
        return answer

    def _fate(self, key: str, writes: bool) -> str:
        weather = self._weather
        if weather.denied is not None and key.startswith(weather.denied):
            return "denied"
        if writes and weather.read_only:
            return "read only"
        if writes and weather.full:
            return "full"
        chance = self._rng.random()
        if weather.out or chance < weather.refused:
            return "refused"
        chance -= weather.refused
        if chance < weather.lost:
            return "answer lost"
        chance -= weather.lost
        if not (writes and key.startswith(weather.late_prefix)):
            return ""
        if chance < weather.late:
            return "late"
        return "twice" if chance - weather.late < weather.twice else ""

    def _act(
        self, effect: Callable[[], Any], answer: tuple[asyncio.Future[Any], float] | None, what: str
    ) -> None:
        result = effect()
        if answer is None:
            self._shared.trace.note("store", f"{what}, unheard by {self._owner.name}")
            return
        future, back = answer
        self._shared.process.post_at(back, _resolve, future, result)


def _unavailable(what: str) -> StoreError:
    return StoreUnavailableError(f"the store did not answer: {what}")


def _fail(answer: asyncio.Future[Any], error: StoreError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()


def _resolve(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)
