"""Quotas at work: who used too much is told to wait, and is muted; nobody else is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.dispatch import make_handle
from penstock.broker.security.quotas import THROTTLE_MS_MAX, ClientQuotas
from penstock.metadata.commands import SetQuota
from penstock.security.quotas import FETCHED, MUTATIONS, PRODUCED, REQUEST_TIME, Limit
from penstock.wire.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.api.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.api.metadata import MetadataRequest, MetadataResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.codec import decode
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.headers import parse_response_header
from tests.broker.rig import Rig, batch

SIZE = 10_000


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(tmp_path / "store")
    await made.upgrade()
    await made.topic("t")
    made.session.principal = "User:alice"
    yield made
    await made.close()


@pytest.fixture
def muted(rig: Rig) -> list[float]:
    """For how many seconds the connection was muted, each time."""
    times: list[float] = []
    rig.session.mute = times.append
    return times


def to_produce() -> ProduceRequest:
    records = batch(bytes(SIZE))
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(records=records)])
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])


async def produce(rig: Rig) -> ProduceResponse:
    answer = await rig.ask(to_produce(), ProduceResponse, 12)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    return answer


async def fetch(rig: Rig) -> FetchResponse:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    topic = FetchTopic(topic="t", partitions=[part])
    request = FetchRequest(max_wait_ms=0, max_bytes=1_000_000, topics=[topic])
    return await rig.ask(request, FetchResponse, 12)


async def test_without_quotas_nothing_is_measured(rig: Rig, muted: list[float]) -> None:
    for _ in range(3):
        assert (await produce(rig)).throttle_time_ms == 0
    assert rig.broker.quotas is None
    await rig.propose(SetQuota(None, None, "10.0.0.1", {"connection_creation_rate": 1.0}))
    assert rig.broker.quotas is None, "addresses are the server's"
    assert muted == []


async def test_bytes_produced_on_the_fast_way_too(rig: Rig, muted: list[float]) -> None:
    await produce(rig)
    assert rig.session.fast is not None
    await rig.propose(SetQuota("alice", None, None, {PRODUCED: 2 * SIZE}))
    times = [(await produce(rig)).throttle_time_ms for _ in range(30)]
    assert times[0] == 0, "a second's worth is there at first"
    assert times[-1] > 2000
    assert muted and muted[-1] * 1000 == times[-1]
    general = rig.general
    last = (await produce(rig)).throttle_time_ms
    assert rig.general == general, "it went the fast way"
    assert last > times[-1]
    await rig.propose(SetQuota("alice", None, None, {PRODUCED: None}))
    assert rig.broker.quotas is None
    assert (await produce(rig)).throttle_time_ms == 0


async def test_who_owes_more_than_an_answer_can_say_is_told_the_most(rig: Rig, muted: list[float]) -> None:
    """Such as some megabytes, at a byte in a second."""
    await rig.propose(SetQuota("alice", None, None, {PRODUCED: SIZE / 1e10, MUTATIONS: 1e-320}))
    assert (await produce(rig)).throttle_time_ms == THROTTLE_MS_MAX
    assert (await produce(rig)).throttle_time_ms == THROTTLE_MS_MAX
    assert await create(rig, 7, "a") == (0, [0])
    assert await create(rig, 7, "b") == (THROTTLE_MS_MAX, [ErrorCode.THROTTLING_QUOTA_EXCEEDED])
    assert muted == [THROTTLE_MS_MAX / 1000] * 3


@pytest.mark.parametrize("fast", [False, True])
async def test_a_produce_counts_when_it_is_started(rig: Rig, muted: list[float], fast: bool) -> None:
    await rig.propose(SetQuota("alice", None, None, {PRODUCED: SIZE / 10}))
    if fast:
        await produce(rig)
        assert rig.session.fast is not None
        muted.clear()
    general = rig.general
    answer = rig.send(to_produce(), 12)
    assert rig.general == general + (not fast)
    assert isinstance(answer, Reply)
    assert not answer.done
    [seconds] = muted
    assert seconds > 8
    buffers = await rig.finished(answer)
    assert buffers is not None
    data = memoryview(b"".join(buffers))
    told, _end = decode(ProduceResponse, 12, data, parse_response_header(0, 12, data)[1])
    assert told.throttle_time_ms == round(seconds * 1000)
    assert muted == [seconds], "the answer does not make it longer"
    assert rig.broker.meters.throttled == 1 + fast


async def test_nobody_else_waits(rig: Rig, muted: list[float]) -> None:
    await rig.propose(SetQuota("alice", None, None, {PRODUCED: 1.0}))
    assert (await produce(rig)).throttle_time_ms > 0
    rig.session.principal = "User:bob"
    rig.session.fast = None
    assert (await produce(rig)).throttle_time_ms == 0


async def test_a_throttled_fetch_has_no_records_and_does_not_count(rig: Rig, muted: list[float]) -> None:
    await produce(rig)
    await rig.propose(SetQuota(None, "", None, {FETCHED: SIZE / 8}))
    first = await fetch(rig)
    assert (first.throttle_time_ms, bool(first.responses)) == (0, True)
    second = await fetch(rig)
    assert second.throttle_time_ms > 0
    assert second.responses == []
    third = await fetch(rig)
    assert 0 < third.throttle_time_ms <= second.throttle_time_ms, "it did not count"
    assert len(muted) == 2


async def test_a_fetch_larger_than_the_samples_is_paid_for_afterwards(rig: Rig, muted: list[float]) -> None:
    await produce(rig)
    await rig.propose(SetQuota(None, "", None, {FETCHED: SIZE / 100}))
    first = await fetch(rig)
    assert (first.throttle_time_ms, bool(first.responses)) == (0, True)
    assert muted == []
    assert (await fetch(rig)).throttle_time_ms == pytest.approx(100_000, rel=0.05)


async def test_request_time_is_bounded_by_a_second(rig: Rig, muted: list[float]) -> None:
    await rig.propose(SetQuota("", None, None, {REQUEST_TIME: 1e-9}))
    answer = await rig.ask(MetadataRequest(topics=None), MetadataResponse, 12)
    assert answer.throttle_time_ms == 1000
    assert muted == [1.0]


async def test_a_hook_beside_quotas_sees_each_request_once(rig: Rig, muted: list[float]) -> None:
    seen: list[str] = []

    def hook(_session: object, one: object) -> int:
        seen.append(type(one).__name__)
        return 0

    rig._handle = make_handle(rig.broker, hook)
    await rig.propose(SetQuota("alice", None, None, {PRODUCED: 1e9}))
    assert isinstance(rig.broker.quotas, ClientQuotas)
    for count in range(1, 5):
        await produce(rig)
        assert len(seen) == count
    meter = rig.broker.quotas._bytes[0].of(Limit(1e9, ("alice", "")), rig.broker.clock.monotonic() * 1000)
    _began, used = meter._samples
    assert 4 * SIZE < used < 5 * SIZE


# -- mutations -------------------------------------------------------------------------------------------


async def create(rig: Rig, version: int, *names: str) -> tuple[int, list[int]]:
    topics = [CreatableTopic(name=name, num_partitions=10, replication_factor=1) for name in names]
    answer = await rig.ask(
        CreateTopicsRequest(topics=topics, timeout_ms=10_000), CreateTopicsResponse, version
    )
    return answer.throttle_time_ms, [topic.error_code for topic in answer.topics]


async def test_mutations_beyond_the_quota_are_refused(rig: Rig, muted: list[float]) -> None:
    await rig.propose(SetQuota("alice", None, None, {MUTATIONS: 1.0}))
    assert await create(rig, 7, "a") == (0, [0])
    throttle_ms, codes = await create(rig, 7, "b", "c")
    assert codes == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED], "the second one overdraws, the third is refused"
    assert 8000 < throttle_ms <= 9000
    assert muted == [throttle_ms / 1000]
    assert "c" not in rig.broker.image.topics
    deleted = await rig.ask(
        DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=10_000), DeleteTopicsResponse, 6
    )
    assert deleted.responses[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    grown = await rig.ask(
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="a", count=11, assignments=None)], timeout_ms=10_000
        ),
        CreatePartitionsResponse,
        3,
    )
    assert grown.results[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert grown.throttle_time_ms > 0


async def test_older_clients_only_wait(rig: Rig, muted: list[float]) -> None:
    await rig.propose(SetQuota("alice", None, None, {MUTATIONS: 1.0}))
    assert await create(rig, 5, "a") == (0, [0])
    throttle_ms, codes = await create(rig, 5, "b", "c")
    assert codes == [0, 0]
    assert throttle_ms > 18_000
