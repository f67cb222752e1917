"""Members of groups made of plain requests on asyncio sockets: thousands fit into one process.

They only do what the protocols ask of a member: they read no topic. Times are therefore the broker's, and a
heartbeat costs the sender almost nothing.
"""

import asyncio
import itertools
import struct
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Any

from conformance.wire import codec, definitions
from conformance.wire.codec import Value

NONE = 0
COORDINATOR_NOT_READY = (14, 15, 16)
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
MEMBER_ID_REQUIRED = 79

JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION, CONSUMER_VERSION = 9, 5, 4, 5, 1
PROTOCOL = "plain"
RETRY_S = 0.1
ANSWER_TIMEOUT_S = 120.0
LEAVING_EPOCH = -1


class Refused(Exception):
    """The broker answered with a code that a member cannot go on from."""


class Wire(asyncio.Protocol):
    """One connection: frames out, frames in, answers in the order of the requests."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._correlations = itertools.count(1)

    @staticmethod
    async def open(host: str, port: int) -> "Wire":
        _, wire = await asyncio.get_running_loop().create_connection(Wire, host, port)
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the broker closed the connection"))
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8:
            size, correlation = struct.unpack_from(">ii", self._buffer)
            if len(self._buffer) < 4 + size:
                return
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            future = self._waiting.pop(correlation, None)
            if future is not None and not future.done():
                future.set_result(frame)

    def send(self, body: bytes, api_key: int, version: int) -> asyncio.Future[bytes]:
        """A flexible request, its body already encoded; the future gives the answer's frame."""
        assert self._transport is not None
        correlation = next(self._correlations)
        head = struct.pack(">hhih", api_key, version, correlation, -1) + b"\0"
        self._transport.write(struct.pack(">i", len(head) + len(body)) + head + body)
        future = self._waiting[correlation] = asyncio.get_running_loop().create_future()
        return future

    async def call(self, api: str, version: int, body: Value) -> Value:
        message = definitions.request(api, version)
        assert message.is_flexible(version)
        encoded = codec.encode(message, version, body)
        frame = await asyncio.wait_for(self.send(encoded, message.api_key, version), ANSWER_TIMEOUT_S)
        return codec.decode(definitions.response(api, version), version, frame[5:])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Member(ABC):
    """What both protocols have in common: a connection, a group, heartbeats that are sent again and again."""

    api: str
    version: int
    error_at: int
    """Where the code stands in an answer to a heartbeat: after the correlation id, tags and throttle time."""

    def __init__(self, host: str, port: int, group: str, topic: str) -> None:
        self.host, self.port = host, port
        self.group = group
        self.topic = topic
        self.wire: Wire
        self.heartbeats = 0
        self.refusals: dict[int, int] = defaultdict(int)
        self._steady: tuple[bytes, int] | None = None

    async def connect(self) -> None:
        self.wire = await Wire.open(self.host, self.port)

    def steady_heartbeat(self) -> asyncio.Future[bytes]:
        """The heartbeat that says nothing new, encoded once."""
        if self._steady is None:
            message = definitions.request(self.api, self.version)
            self._steady = codec.encode(message, self.version, self.heartbeat_body()), message.api_key
        return self.wire.send(*self._steady, self.version)

    def count(self, answer: asyncio.Future[bytes]) -> None:
        """For `add_done_callback`: how a steady heartbeat was answered."""
        if answer.cancelled() or answer.exception() is not None:
            self.refusals[-1] += 1
            return
        (code,) = struct.unpack_from(">h", answer.result(), self.error_at)
        self.heartbeats += 1
        if code != NONE:
            self.refusals[code] += 1

    def changed(self) -> None:
        self._steady = None

    @abstractmethod
    def heartbeat_body(self) -> Value: ...


class ClassicMember(Member):
    """JoinGroup, SyncGroup, Heartbeat. The leader gives every member the name of the generation."""

    api, version, error_at = "Heartbeat", HEARTBEAT_VERSION, 9

    def __init__(self, host: str, port: int, group: str, topic: str, session_ms: int = 60_000) -> None:
        super().__init__(host, port, group, topic)
        self.session_ms = session_ms
        self.id = ""
        self.generation = -1
        self.assignment = b""

    async def join(self) -> None:
        """Become a member of the present or the next generation, however many rounds that takes."""
        while True:
            code = await self._join_once()
            if code == NONE:
                return
            if code in COORDINATOR_NOT_READY:
                await asyncio.sleep(RETRY_S)
            elif code == UNKNOWN_MEMBER_ID:
                self.id = ""
            elif code not in (REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, MEMBER_ID_REQUIRED):
                raise Refused(f"{self.group}: code {code}")

    async def _join_once(self) -> int:
        body = {
            "GroupId": self.group,
            "SessionTimeoutMs": self.session_ms,
            "RebalanceTimeoutMs": 60_000,
            "MemberId": self.id,
            "ProtocolType": PROTOCOL,
            "Protocols": [{"Name": PROTOCOL, "Metadata": b"m"}],
        }
        joined = await self.wire.call("JoinGroup", JOIN_VERSION, body)
        if joined["ErrorCode"] in (NONE, MEMBER_ID_REQUIRED):
            self.id = joined["MemberId"]
        if joined["ErrorCode"] != NONE:
            return int(joined["ErrorCode"])
        self.generation = joined["GenerationId"]
        self.changed()
        given = b"generation %d" % self.generation
        leads = joined["Leader"] == self.id
        shares = (
            [{"MemberId": each["MemberId"], "Assignment": given} for each in joined["Members"]]
            if leads
            else []
        )
        answer = {"ProtocolType": PROTOCOL, "ProtocolName": PROTOCOL, "Assignments": shares}
        synced = await self.wire.call("SyncGroup", SYNC_VERSION, self._identity() | answer)
        if synced["ErrorCode"] != NONE:
            return int(synced["ErrorCode"])
        self.assignment = synced["Assignment"]
        if self.assignment != given:
            raise Refused(f"{self.group}: assignment {self.assignment!r} in generation {self.generation}")
        return NONE

    async def heartbeat(self) -> int:
        answer = await self.wire.call("Heartbeat", HEARTBEAT_VERSION, self._identity())
        return int(answer["ErrorCode"])

    async def leave(self) -> None:
        await self.wire.call(
            "LeaveGroup", LEAVE_VERSION, {"GroupId": self.group, "Members": [{"MemberId": self.id}]}
        )
        self.wire.close()

    async def stay(self, interval_s: float, generations: asyncio.Queue[tuple["ClassicMember", int]]) -> None:
        """Join, heartbeat, join again when told to; each generation that is reached goes into the queue."""
        while True:
            await self.join()
            generations.put_nowait((self, self.generation))
            while True:
                if await self.heartbeat() != NONE:
                    break
                await asyncio.sleep(interval_s)

    def heartbeat_body(self) -> Value:
        return self._identity()

    def _identity(self) -> Value:
        return {"GroupId": self.group, "GenerationId": self.generation, "MemberId": self.id}


class ConsumerMember(Member):
    """ConsumerGroupHeartbeat (KIP-848) and nothing else."""

    api, version, error_at = "ConsumerGroupHeartbeat", CONSUMER_VERSION, 9

    def __init__(self, host: str, port: int, group: str, topic: str) -> None:
        super().__init__(host, port, group, topic)
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: frozenset[tuple[bytes, int]] = frozenset()

    async def join(self) -> None:
        body = {
            "GroupId": self.group,
            "MemberId": self.id,
            "MemberEpoch": 0,
            "RebalanceTimeoutMs": 60_000,
            "SubscribedTopicNames": [self.topic],
            "TopicPartitions": [],
        }
        while True:
            if await self._beat(body) == NONE:
                return
            await asyncio.sleep(RETRY_S)

    async def heartbeat(self) -> None:
        """One that also says what is owned: whatever was assigned or taken away is acted on at once."""
        await self._beat(self.heartbeat_body() | {"TopicPartitions": _grouped(self.owned)})

    async def leave(self) -> None:
        body = {"GroupId": self.group, "MemberId": self.id, "MemberEpoch": LEAVING_EPOCH}
        await self.wire.call(self.api, CONSUMER_VERSION, body)
        self.owned = frozenset()
        self.wire.close()

    async def _beat(self, body: Value) -> int:
        answer = await self.wire.call(self.api, CONSUMER_VERSION, body)
        code = int(answer["ErrorCode"])
        if code in COORDINATOR_NOT_READY:
            return code
        if code != NONE:
            raise Refused(f"{self.group}: code {code}: {answer['ErrorMessage']}")
        if answer["MemberEpoch"] != self.epoch:
            self.epoch = answer["MemberEpoch"]
            self.changed()
        assignment: Any = answer["Assignment"]
        if assignment is not None:
            self.owned = frozenset(
                (each["TopicId"], partition)
                for each in assignment["TopicPartitions"]
                for partition in each["Partitions"]
            )
        return NONE

    def heartbeat_body(self) -> Value:
        # Null says that nothing has changed.
        return {
            "GroupId": self.group,
            "MemberId": self.id,
            "MemberEpoch": self.epoch,
            "SubscribedTopicNames": None,
            "TopicPartitions": None,
        }


def _grouped(owned: frozenset[tuple[bytes, int]]) -> list[Value]:
    by_topic: dict[bytes, list[int]] = defaultdict(list)
    for topic_id, partition in owned:
        by_topic[topic_id].append(partition)
    return [{"TopicId": topic_id, "Partitions": partitions} for topic_id, partitions in by_topic.items()]
