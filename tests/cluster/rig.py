"""A store that misbehaves on purpose, a clock that tests move, and several brokers' ends of one log."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence

from penstock.clock import Clock
from penstock.cluster.metadata_log import MetadataLog
from penstock.metadata.commands import AnyCommand, CreateTopic, RegisterBroker
from penstock.metadata.image import ClusterImage, Listener
from penstock.metadata.placement import spread
from penstock.metadata.refusal import Refusal
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import ObjectInfo, StoreUnavailableError
from penstock.testing.waiting import eventually
from penstock.wire.buffers import Buffer
from tests.clocks import HandClock


class FaultyStore:
    """One broker's way to a shared store. Each request takes a random number of turns of the loop; with
    some probability it fails before it is done, or is done and its answer is lost."""

    local = None

    def __init__(self, inner: MemoryStore, seed: int = 0, *, fail: float = 0.0, lose: float = 0.0) -> None:
        self.inner = inner
        self.random = random.Random(seed)
        self.fail = fail
        self.lose = lose
        self.down = False
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] | None = None
        """Called with operation and key before each request is carried out."""

    async def _request(self, operation: str, key: str) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        self.requests.append((operation, key))
        if self.before is not None:
            self.before(operation, key)
        if self.down or self.random.random() < self.fail:
            raise StoreUnavailableError("the store does not answer")

    def _answer(self) -> None:
        if self.random.random() < self.lose:
            raise StoreUnavailableError("the answer was lost")

    async def create(self, key: str, *parts: Buffer) -> bool:
        await self._request("create", key)
        created = await self.inner.create(key, *parts)
        self._answer()
        return created

    async def put(self, key: str, *parts: Buffer) -> None:
        await self._request("put", key)
        await self.inner.put(key, *parts)
        self._answer()

    async def get(self, key: str) -> bytes | None:
        await self._request("get", key)
        found = await self.inner.get(key)
        self._answer()
        return found

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._request("get", key)
        return await self.inner.get_range(key, start, length)

    async def size(self, key: str) -> int | None:
        await self._request("size", key)
        return await self.inner.size(key)

    async def delete(self, key: str) -> None:
        await self._request("delete", key)
        await self.inner.delete(key)
        self._answer()

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self.requests.append(("list", prefix))
        async for info in self.inner.list(prefix):
            yield info

    async def close(self) -> None:
        """Nothing is held open."""


def open_log(
    store: FaultyStore,
    *,
    clock: Clock | None = None,
    snapshot_entries: int = 1_000_000,
    timeout: float = 5.0,
) -> MetadataLog:
    """A log that never pauses longer than a turn of the loop."""
    numbers = store.random
    return MetadataLog(
        store,
        clock or HandClock(),
        propose_timeout=timeout,
        snapshot_entries=snapshot_entries,
        jitter=lambda: 0.0,
        token=lambda: numbers.getrandbits(128).to_bytes(16, "big"),
    )


def registering(broker: int) -> Callable[[ClusterImage], Sequence[AnyCommand]]:
    command = RegisterBroker(broker, (Listener("PLAINTEXT", f"host-{broker}", 9090 + broker),))
    return lambda image: [command] if broker not in image.brokers else []


def creating(
    name: str, identity: bytes | None = None
) -> Callable[[ClusterImage], Sequence[AnyCommand] | Refusal]:
    def decide(image: ClusterImage) -> Sequence[AnyCommand] | Refusal:
        orders = spread(image, 1, 1)
        if isinstance(orders, Refusal):
            return orders
        return [CreateTopic(identity or name.encode().rjust(16)[-16:], name, orders)]

    return decide


async def until_led_by(log: MetadataLog, topic: str, index: int, broker: int) -> None:
    """Wait until the image says that a broker leads a partition."""
    await eventually(
        lambda: log.image.topics[topic].partitions[index].leader == broker, f"broker {broker} as leader"
    )
