"""A broker without sockets: a real store in a directory, the metadata log, the ledger, and `handle`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.broker.context import Broker
from penstock.broker.dispatch import make_handle
from penstock.cluster.metadata_log import MetadataLog
from penstock.metadata.commands import AnyCommand, CreateTopic, RegisterBroker, SetConfig, SetLevel
from penstock.metadata.image import TOPIC_CONFIG, ClusterImage, Listener, TopicInfo
from penstock.metadata.levels import LEVEL_MAX
from penstock.metadata.refusal import Refusal
from penstock.server.framed import FramedRequest
from penstock.settings import Settings
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.partitions.settings import LedgerSettings
from penstock.storage.stores.objects import ObjectStore
from penstock.storage.stores.opening import open_store
from penstock.storage.wal.opening import open_wal_store
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import decode, encode
from penstock.wire.exchange import Reply, Session
from penstock.wire.headers import parse_response_header, request_header
from penstock.wire.schema import ApiMessage
from tests.clocks import AheadClock

R = TypeVar("R", bound=ApiMessage)


class Rig:
    """One broker. `ask` sends a message through `handle`, as the server would, and decodes the answer."""

    def __init__(self, broker: Broker, clock: AheadClock) -> None:
        self.broker = broker
        self.clock = clock
        self.session = Session("PLAINTEXT", "127.0.0.1")
        self._handle = make_handle(broker)
        self.client_id = "rig"
        self.general = 0
        """How many requests did not go the fast way."""
        self._correlation_id = 0

    @classmethod
    async def start(
        cls,
        directory: Path,
        *,
        store: ObjectStore | None = None,
        ledger_settings: LedgerSettings | None = None,
        **settings: Any,
    ) -> Rig:
        clock = AheadClock()
        store = store or open_store(str(directory))
        metadata = MetadataLog(store, clock)
        await metadata.open()
        listeners = (Listener("PLAINTEXT", "127.0.0.1", 9092),)
        image = await metadata.propose(lambda image: (RegisterBroker(1, listeners, incarnation="rig"),))
        assert isinstance(image, ClusterImage)
        ledger = Ledger(
            Holdings(
                image.brokers[1].wal,
                store,
                open_wal_store(store),
                ledger_settings or LedgerSettings(),
                clock,
                metadata.propose,
            )
        )
        await ledger.open(image)
        metadata.subscribe(ledger.follow)
        broker = Broker(
            settings=Settings(**settings),
            clock=clock,
            metadata=metadata,
            ledger=ledger,
            broker_id=1,
            broker_epoch=image.brokers[1].epoch,
        )
        return cls(broker, clock)

    async def close(self) -> None:
        await self.broker.stop()
        await self.broker.ledger.close()
        await self.broker.metadata.close()
        await self.broker.metadata.store.close()

    async def propose(self, *commands: AnyCommand) -> ClusterImage:
        image = await self.broker.metadata.propose(lambda _: commands)
        assert not isinstance(image, Refusal), image
        return image

    async def upgrade(self) -> None:
        """The cluster at the newest feature level, as new ones are."""
        await self.propose(SetLevel(LEVEL_MAX, readers=(self.broker.image.brokers[1].wal,)))

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> TopicInfo:
        topic_id = name.encode().ljust(16, b"*")[:16]
        await self.propose(
            CreateTopic(topic_id, name, tuple((1,) for _ in range(partitions)), configs=_dotted(configs))
        )
        return self.broker.image.topics[name]

    async def create(self, name: str, *, assignments: Sequence[Sequence[int]]) -> TopicInfo:
        """A topic whose partitions are where the test says."""
        topic_id = name.encode().ljust(16, b"*")[:16]
        orders = tuple(tuple(order) for order in assignments)
        await self.propose(CreateTopic(topic_id, name, orders, pinned=True))
        return self.broker.image.topics[name]

    async def configure(self, name: str, **configs: str) -> None:
        changes: dict[str, str | None] = {key.replace("_", "."): value for key, value in configs.items()}
        await self.propose(SetConfig(TOPIC_CONFIG, name, changes))

    # -- requests ------------------------------------------------------------------------------------

    def send(self, message: ApiMessage, version: int, *, owned: bool = False) -> Reply | list[Any] | None:
        """Hand a request over, in a buffer that is spoilt afterwards unless it is the handler's own."""
        self._correlation_id += 1
        frame = bytearray(
            request_header(message.api_key, version, self._correlation_id, self.client_id)
            + encode(message, version)
        )
        answer = self.handle(memoryview(frame), owned)
        if not owned:
            frame[:] = b"\xee" * len(frame)
        return answer

    def handle(self, frame: memoryview, owned: bool = False) -> Reply | list[Any] | None:
        """What the server does with a frame: the connection's fast way if it has one, else `handle`."""
        fast = self.session.fast
        answer: Reply | list[Any] | None = fast(frame, owned) if fast is not None else None
        if answer is not None:
            return answer
        self.general += 1
        return self._handle(FramedRequest(self.session, frame, owned))

    async def ask(self, message: ApiMessage, response: type[R], version: int, *, owned: bool = False) -> R:
        answer = self.send(message, version, owned=owned)
        expected_id = self._correlation_id
        buffers = await self.finished(answer)
        assert buffers is not None, "the connection was closed, or there was no answer"
        data = memoryview(b"".join(buffers))
        correlation_id, at = parse_response_header(message.api_key, version, data)
        assert correlation_id == expected_id
        decoded, end = decode(response, version, data, at)
        assert end == len(data), "bytes are left over after the answer"
        return decoded

    async def finished(self, answer: Reply | list[Any] | None) -> list[Any] | None:
        """The buffers of an answer; None if the connection is closed instead, or nothing is answered."""
        if not isinstance(answer, Reply):
            return answer
        ready = asyncio.Event()
        answer.when_done(lambda _: ready.set())
        await asyncio.wait_for(ready.wait(), 60)
        return None if answer.closed else answer.buffers


def _dotted(configs: Mapping[str, str]) -> dict[str, str]:
    return {key.replace("_", "."): value for key, value in configs.items()}


def batch(*values: bytes, timestamp: int = 1_700_000_000_000, **options: Any) -> bytearray:
    """A batch as a producer sends it: base offset 0."""
    records = [
        Record(offset=at, timestamp=timestamp, key=b"k%d" % at, value=value)
        for at, value in enumerate(values)
    ]
    return build_batch(records, **options)
