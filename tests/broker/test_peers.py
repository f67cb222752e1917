"""Asking other brokers: against brokers that serve, and against one that does as the test says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.peers import peers as module
from penstock.broker.peers.link import Link
from penstock.broker.peers.peers import PeerError, Peers
from penstock.clock import SystemClock
from penstock.metadata.image import BrokerInfo, ClusterImage, Listener, derive
from penstock.wire.api.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.codec import encode
from penstock.wire.errors import ErrorCode
from penstock.wire.headers import parse_request_header, response_header
from penstock.wire.schema import ApiMessage
from tests.cluster.nodes import Nodes

Frames = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    nodes = Nodes(tmp_path / "store")
    yield nodes
    await nodes.close()


async def peers_at(nodes: Nodes, broker: int) -> Peers:
    """What this broker asks others with, when it knows of all that have started."""
    await nodes.nodes[broker].broker.metadata.catch_up()
    return nodes.nodes[broker].broker.services.peers


async def topic(peers: Peers, broker: int, name: str) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    answer = await peers.ask(broker, request, MetadataResponse)
    assert [found.name for found in answer.topics] == [name]
    return answer.topics[0].error_code


async def test_a_broker_asks_another_one_through_its_listener(nodes: Nodes) -> None:
    await nodes.start(1, 2)
    peers = await peers_at(nodes, 1)
    # They go out together, and each gets its own answer.
    codes = await asyncio.gather(*(topic(peers, 2, f"t{number}") for number in range(250)))
    assert set(codes) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_a_broker_asks_itself_as_any_other(nodes: Nodes) -> None:
    await nodes.start(1)
    peers = nodes.nodes[1].broker.services.peers
    answer = await peers.ask(
        1, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), FindCoordinatorResponse
    )
    assert [one.node_id for one in answer.coordinators] == [1]


async def test_a_broker_that_came_back_elsewhere_is_asked_there(nodes: Nodes) -> None:
    await nodes.start(1, 2)
    peers = await peers_at(nodes, 1)
    await topic(peers, 2, "t")
    await nodes.kill(2)
    with pytest.raises(PeerError):
        await topic(peers, 2, "t")
    await nodes.start(2)
    await nodes.nodes[1].broker.metadata.catch_up()
    assert await topic(peers, 2, "t") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_who_is_not_in_the_cluster_is_not_asked(nodes: Nodes) -> None:
    await nodes.start(1)
    with pytest.raises(PeerError, match="Broker 7 is not in the cluster"):
        await topic(nodes.nodes[1].broker.services.peers, 7, "t")


class OddRequest(ApiMessage):
    """Of an API that nobody knows."""

    api_key = 9999
    min_version = 0
    max_version = 0
    flexible_from = 0


async def test_what_a_broker_does_not_serve_is_not_sent(nodes: Nodes) -> None:
    await nodes.start(1)
    peers = nodes.nodes[1].broker.services.peers
    with pytest.raises(PeerError, match="does not serve OddRequest"):
        await peers.ask(1, OddRequest(), MetadataResponse)


async def test_who_waits_when_the_broker_stops_is_told() -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        asked.set()
        await reader.read()

    async with odd_broker(silent) as port:
        peers = peers_of(port)
        waiting = asyncio.ensure_future(topic(peers, 2, "t"))
        await asked.wait()
        await peers.stop()
        with pytest.raises(PeerError):
            await waiting


# -- a broker that does as the test says -------------------------------------------------------------


@asynccontextmanager
async def odd_broker(behave: Frames) -> AsyncIterator[int]:
    """A broker that greets, and then behaves like that. Its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await greet(reader, writer)
            await behave(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def frame(reader: asyncio.StreamReader) -> memoryview:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return memoryview(await reader.readexactly(size))


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    header = parse_request_header(await frame(reader))
    assert header.api_key == ApiVersionsRequest.api_key
    apis = [ApiVersion(api_key=MetadataRequest.api_key, min_version=9, max_version=9)]
    answer = ApiVersionsResponse(api_keys=apis)
    send(writer, ApiVersionsRequest.api_key, header.api_version, header.correlation_id, answer)


def send(
    writer: asyncio.StreamWriter,
    key: int,
    version: int,
    number: int,
    answer: ApiMessage,
) -> None:
    data = response_header(key, version, number) + encode(answer, version)
    writer.write(struct.pack(">i", len(data)) + data)


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await frame(reader)


def peers_of(port: int) -> Peers:
    info = BrokerInfo(2, 1, (Listener("PLAINTEXT", "127.0.0.1", port),))
    image = derive(ClusterImage(version=1, cluster_id="test", brokers={2: info}))
    return Peers("broker-1", "PLAINTEXT", lambda: image, SystemClock())


async def test_answers_are_told_apart_by_their_correlation_ids() -> None:
    async def backwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = [parse_request_header(await frame(reader)) for _ in range(3)]
        for header in reversed(asked):
            answer = MetadataResponse(controller_id=header.correlation_id)
            send(writer, header.api_key, header.api_version, header.correlation_id, answer)
        await reader.read()

    async with odd_broker(backwards) as port:
        peers = peers_of(port)
        asks = [peers.ask(2, MetadataRequest(topics=[]), MetadataResponse) for _ in range(3)]
        answers = await asyncio.gather(*asks)
        numbers = [answer.controller_id for answer in answers]
        assert numbers == sorted(numbers) and len(set(numbers)) == 3
        await peers.stop()


async def test_who_gets_no_answer_in_time_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await silence(reader, writer)
        finally:
            closed.set()

    async with odd_broker(silent) as port:
        peers = peers_of(port)
        other = asyncio.ensure_future(topic(peers, 2, "t"))
        with pytest.raises(PeerError, match=r"did not answer in 0\.1 s"):
            await peers.ask(2, MetadataRequest(topics=[]), MetadataResponse, seconds=0.1)
        with pytest.raises(PeerError):
            await other
        await asyncio.wait_for(closed.wait(), 60)


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400 Bad Request\r\n", struct.pack(">i", 3) + b"abc", b"\xff" * 8]
)
async def test_what_is_no_answer_ends_the_connection(garbage: bytes) -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)
        writer.write(garbage)
        await reader.read()

    async with odd_broker(rude) as port:
        peers = peers_of(port)
        with pytest.raises(PeerError):
            await peers.ask(2, MetadataRequest(topics=[]), MetadataResponse, seconds=5)
        await peers.stop()


async def test_a_broker_that_could_not_be_reached_is_left_alone_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialled = 0

    async def refuse(host: str, port: int) -> Link:
        nonlocal dialled
        dialled += 1
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(module, "PAUSE_FIRST_SECONDS", 60.0)
    monkeypatch.setattr(module, "PAUSE_MAX_SECONDS", 60.0)
    peers = peers_of(1)
    peers._dial = refuse
    for _ in range(5):
        with pytest.raises(PeerError):
            await topic(peers, 2, "t")
    assert dialled == 1


async def test_so_many_requests_are_in_flight_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT_MAX", 2)
    seen = asyncio.Queue[int]()
    full = asyncio.Event()
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            header = parse_request_header(await frame(reader))
            seen.put_nowait(header.correlation_id)
            if seen.qsize() == 2:
                full.set()
                await go_on.wait()
                for _ in range(2):
                    send(writer, header.api_key, header.api_version, seen.get_nowait(), MetadataResponse())

    async with odd_broker(slow) as port:
        peers = peers_of(port)
        asks = [
            asyncio.ensure_future(peers.ask(2, MetadataRequest(topics=[]), MetadataResponse))
            for _ in range(4)
        ]
        await full.wait()
        assert peers._peers[2]._turns.locked()
        go_on.set()
        await asyncio.gather(*asks)
        await peers.stop()
