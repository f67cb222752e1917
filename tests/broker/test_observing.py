"""The hook of a broker sees each request once, whichever way it goes, and can throttle its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.dispatch import make_handle
from penstock.broker.observing import Seen, error_in, throttled
from penstock.broker.registry import APIS, Api
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply, Session
from penstock.wire.headers import request_header, response_header
from penstock.wire.layout import layout_of
from tests.broker.rig import Rig, batch

THROTTLE_MS = 1234
VERSIONS = [
    pytest.param(row, version, id=f"{row.name}-{version}")
    for row in APIS.values()
    for version in range(row.min_version, row.max_version + 1)
]


@pytest.mark.parametrize(("row", "version"), VERSIONS)
def test_a_throttle_time_is_put_into_an_encoded_answer(row: Api, version: int) -> None:
    response_class = row.messages()[1]
    header = response_header(row.key, version, 7)
    whole = [header, encode(response_class(), version)]
    has_place = any(field.name == "throttle_time_ms" for field in layout_of(response_class, version).plain)
    for buffers in (whole, [b"".join(whole)]):
        data = memoryview(b"".join(throttled(row, version, list(buffers), THROTTLE_MS)))
        assert data[: len(header)] == header
        found, end = decode(response_class, version, data, len(header))
        assert end == len(data)
        expected = response_class()
        if has_place:
            expected.throttle_time_ms = THROTTLE_MS
        assert encode(found, version) == encode(expected, version)


@pytest.mark.parametrize(("row", "version"), VERSIONS)
def test_the_code_of_an_encoded_answer(row: Api, version: int) -> None:
    response_class = row.messages()[1]
    header = response_header(row.key, version, 7)
    assert error_in(row, version, [header, encode(response_class(), version)]) is None
    plain = layout_of(response_class, version).plain
    if plain and plain[0].name == "error_code":
        answer = response_class(error_code=ErrorCode.NOT_COORDINATOR)
        assert error_in(row, version, [header, encode(answer, version)]) is ErrorCode.NOT_COORDINATOR


Watching = Callable[[int], list[Seen]]


@pytest.fixture
def watching(rig: Rig) -> Watching:
    """From now on requests are seen, and throttled by so much."""

    def watch(throttle_ms: int) -> list[Seen]:
        seen: list[Seen] = []

        def hook(session: Session, one: Seen) -> int:
            assert session is rig.session
            seen.append(one)
            return throttle_ms

        rig._handle = make_handle(rig.broker, hook)
        return seen

    return watch


def produce(name: str, acks: int = -1) -> ProduceRequest:
    data = TopicProduceData(name=name, partition_data=[PartitionProduceData(records=batch(b"x"))])
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[data])


def fetch(name: str, offset: int, max_wait_ms: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
    topic = FetchTopic(topic=name, partitions=[part])
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1000, topics=[topic])


def told(seen: list[Seen]) -> list[tuple[str, int, ErrorCode | None]]:
    return [(one.api.name, one.version, one.error) for one in seen]


async def test_every_way_is_seen_once_and_throttled(rig: Rig, watching: Watching) -> None:
    await rig.topic("t")
    seen = watching(THROTTLE_MS)
    for _ in range(3):
        stored = await rig.ask(produce("t"), ProduceResponse, 12)
        assert stored.throttle_time_ms == THROTTLE_MS
        assert stored.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    fetched = await rig.ask(fetch("t", 1), FetchResponse, 12)
    assert (fetched.throttle_time_ms, fetched.responses) == (THROTTLE_MS, []), "its records wait"
    for _ in range(2):
        known = await rig.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), MetadataResponse, 12)
        assert (known.throttle_time_ms, known.topics[0].name) == (THROTTLE_MS, "t")
    refused = await rig.ask(
        InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1), InitProducerIdResponse, 4
    )
    assert (refused.throttle_time_ms, refused.error_code) == (THROTTLE_MS, ErrorCode.INVALID_REQUEST)
    assert told(seen) == [
        *[("Produce", 12, None)] * 3,
        ("Fetch", 12, None),
        *[("Metadata", 12, None)] * 2,
        ("InitProducerId", 4, ErrorCode.INVALID_REQUEST),
    ]
    assert all(one.request_bytes > 20 and one.answer_bytes > 10 and one.seconds >= 0 for one in seen)
    assert seen[0].request_bytes == seen[2].request_bytes


async def test_the_second_produce_went_the_fast_way(rig: Rig, watching: Watching) -> None:
    await rig.topic("t")
    seen = watching(0)
    await rig.ask(produce("t"), ProduceResponse, 12)
    fast = rig.session.fast
    stored = await rig.ask(produce("t"), ProduceResponse, 12)
    assert stored.throttle_time_ms == 0
    assert rig.session.fast is fast
    assert len(seen) == 2
    # What the fast way does not take is seen once too.
    await rig.ask(fetch("t", 0), FetchResponse, 12)
    assert len(seen) == 3


async def test_what_has_no_answer_is_seen(rig: Rig, watching: Watching) -> None:
    await rig.topic("t")
    seen = watching(THROTTLE_MS)
    assert await rig.finished(rig.send(produce("t", acks=0), 12)) is None
    assert await rig.finished(rig.send(produce("nowhere", acks=0), 12)) is None
    frame = bytearray(request_header(3, 99, 1, "odd") + bytes(50))
    closed = rig.handle(memoryview(frame))
    assert isinstance(closed, Reply) and closed.closed
    closed = rig.handle(memoryview(bytearray(request_header(200, 0, 1, "odd") + bytes(50))))
    assert isinstance(closed, Reply) and closed.closed
    gone = ErrorCode.NETWORK_EXCEPTION
    assert told(seen) == [("Produce", 12, None), ("Produce", 12, gone), ("Metadata", 99, gone)]


async def test_who_waits_can_still_be_hurried_and_left(rig: Rig, watching: Watching) -> None:
    await rig.topic("t")
    seen = watching(0)
    waiting = rig.send(fetch("t", 0, max_wait_ms=60_000), 12)
    assert isinstance(waiting, Reply) and not waiting.done and waiting.on_hurry is not None
    waiting.on_hurry()
    assert waiting.done
    left = rig.send(fetch("t", 0, max_wait_ms=60_000), 12)
    assert isinstance(left, Reply) and left.on_abandon is not None
    left.on_abandon()
    assert len(seen) == 1


async def test_a_hook_that_fails_harms_no_answer(rig: Rig) -> None:
    await rig.topic("t")

    def broken(*_: Any) -> int:
        raise ValueError("a bug")

    rig._handle = make_handle(rig.broker, broken)
    for _ in range(2):
        stored = await rig.ask(produce("t"), ProduceResponse, 12)
        assert stored.responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def test_without_a_hook_nothing_stands_in_the_way(rig: Rig) -> None:
    await rig.topic("t")
    await rig.ask(produce("t"), ProduceResponse, 12)
    assert getattr(rig.session.fast, "__name__", "") == "take"
