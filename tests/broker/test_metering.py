"""Every request is counted once, whichever way it goes, and nothing that a peer chooses becomes a series."""

from __future__ import annotations

import pytest

from penstock.broker.dispatch import make_handle
from penstock.broker.metering import SAMPLE, Meters, item_codes
from penstock.broker.registry import APIS
from penstock.tally import Histogram
from penstock.wire.api.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.api.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig, batch

PRODUCE, FETCH = 0, 1


def produce(name: str, partition: int = 0, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=batch(b"one", b"two"))
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=name, partition_data=[data])]
    )


def fetch(name: str, offset: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
    return FetchRequest(max_bytes=1_000_000, topics=[FetchTopic(topic=name, partitions=[partition])])


@pytest.fixture
def meters(rig: Rig) -> Meters:
    """The requests of the rig are counted from now on."""
    rig.broker.meters = Meters(timed=True)
    rig._handle = make_handle(rig.broker)
    return rig.broker.meters


async def test_all_requests_are_counted_and_the_fast_way_is_sampled(rig: Rig, meters: Meters) -> None:
    await rig.topic("t")
    for _ in range(3 * SAMPLE):
        await rig.ask(produce("t"), ProduceResponse, 9)
    assert rig.general == 1, "the others went the fast way"
    assert meters.requests[PRODUCE, 9].requests == 3 * SAMPLE
    # One of the general way, the first of the fast way, and then each 64th.
    assert meters.times[PRODUCE].count == 1 + 1 + 2 * SAMPLE
    meters.ring()
    await rig.ask(produce("t"), ProduceResponse, 9)
    assert meters.times[PRODUCE].count == meters.requests[PRODUCE, 9].requests, "it stands for the others"
    traffic = dict(rig.broker.ledger.traffic.all())["t"]
    assert traffic.records_in == 2 * (3 * SAMPLE + 1)
    assert traffic.bytes_in == (3 * SAMPLE + 1) * len(batch(b"one", b"two"))


async def test_what_readers_get_is_counted_by_topic(rig: Rig, meters: Meters) -> None:
    await rig.topic("t")
    for _ in range(5):
        await rig.ask(produce("t"), ProduceResponse, 9)
    for offset, size in ((0, 5), (4, 3), (9, 1)):
        before = dict(rig.broker.ledger.traffic.all())["t"].bytes_out
        await rig.ask(fetch("t", offset), FetchResponse, 11)
        after = dict(rig.broker.ledger.traffic.all())["t"].bytes_out
        assert after - before == size * len(batch(b"one", b"two"))
    # From the offset asked for on, not from where its batch begins.
    assert dict(rig.broker.ledger.traffic.all())["t"].records_out == 10 + 6 + 1
    assert meters.tail_reads == 3
    await rig.ask(fetch("t", 99), FetchResponse, 11)
    assert meters.errors == {(FETCH, ErrorCode.OFFSET_OUT_OF_RANGE): 1}


async def test_codes_of_whole_answers_partitions_and_items(rig: Rig, meters: Meters) -> None:
    await rig.topic("t")
    await rig.ask(produce("t", 7), ProduceResponse, 9)
    assert meters.errors.pop((PRODUCE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)) == 1
    await rig.ask(InitProducerIdRequest(transactional_id=""), InitProducerIdResponse, 4)
    assert meters.errors.pop((22, ErrorCode.INVALID_REQUEST)) == 1
    topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1) for _ in range(1)]
    topics.append(CreatableTopic(name="bad/name", num_partitions=1, replication_factor=1))
    await rig.ask(CreateTopicsRequest(topics=topics), CreateTopicsResponse, 5)
    assert meters.errors == {
        (19, ErrorCode.TOPIC_ALREADY_EXISTS): 1,
        (19, ErrorCode.INVALID_TOPIC_EXCEPTION): 1,
    }


async def test_a_closed_connection_is_counted(rig: Rig, meters: Meters) -> None:
    await rig.topic("t")
    assert await rig.finished(rig.send(produce("t", 7, acks=0), 9)) is None
    assert meters.closed == {PRODUCE: 1}
    assert meters.requests[PRODUCE, 9].requests == 1


async def test_numbers_that_a_peer_makes_up_are_one_count(rig: Rig, meters: Meters) -> None:
    for api_key, version in ((9999, 0), (0, 99), (0, -1), (-1, 3)):
        frame = bytearray(api_key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True))
        await rig.finished(rig.handle(memoryview(frame + b"\0\0\0\1\0\0")))
    assert meters.unknown == 4
    assert meters.requests == {}


async def test_a_broker_that_nobody_watches_times_nothing(rig: Rig) -> None:
    await rig.topic("t")
    for _ in range(2 * SAMPLE):
        await rig.ask(produce("t"), ProduceResponse, 9)
    assert all(times.count == 0 for times in rig.broker.meters.times.values())


def test_codes_are_found_in_items_of_items() -> None:
    response = ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name="t",
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=0),
                    ListOffsetsPartitionResponse(partition_index=1, error_code=6),
                ],
            )
        ]
    )
    assert list(item_codes(response)) == [6]


def test_every_response_can_be_searched() -> None:
    for row in APIS.values():
        assert list(item_codes(row.messages()[1]())) == []


def test_the_bounds_of_a_histogram() -> None:
    found = Histogram()
    for value in (0, 1, 2, 3, 4, 1023, 1024):
        found.add(value)
    found.add(5, 10)
    assert found.below(range(1, 4)) == [2, 4, 15]
    assert found.below(range(10, 12)) == [16, 17]
    assert (found.count, found.sum) == (17, 2057 + 50)
