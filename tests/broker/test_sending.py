"""Markers on their way: how many requests, what is tried again, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, cast

import msgspec
import pytest

from penstock.broker.peers.peers import PeerError
from penstock.broker.transactions import sending
from penstock.broker.transactions.sending import MarkerSender
from penstock.metadata.image import BrokerInfo, ClusterImage, PartitionInfo, TopicInfo, derive
from penstock.testing.waiting import eventually
from penstock.transactions.core import Marking
from penstock.transactions.ending import Ending
from penstock.transactions.transaction import Place
from penstock.wire.api.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.codec import ITEMS_MAX
from penstock.wire.errors import ErrorCode

HERE, THERE = 1, 2
LOCAL, REMOTE, OTHER = Place("t", 0), Place("t", 1), Place("t", 2)


def image_of(*leaders: int) -> ClusterImage:
    partitions = tuple(PartitionInfo(leader, 1, (HERE, THERE)) for leader in leaders)
    return derive(
        ClusterImage(
            topics={"t": TopicInfo(bytes(16), "t", partitions)},
            brokers={number: BrokerInfo(number, number, ()) for number in (HERE, THERE)},
        )
    )


class Live:
    """A shard that remembers what it is told."""

    def __init__(self) -> None:
        self.serves = True
        self.closed = False
        self.written: list[Place] = []

    def tell(self, _event: object, _name: str, _ending: Ending, places: Collection[Place]) -> None:
        self.written.extend(places)


class World:
    """A broker, and another one that answers as the test says."""

    broker_id = HERE

    def __init__(self) -> None:
        self.image = image_of(HERE, THERE, THERE)
        self.metadata = self
        self.sure = True
        self.requests: list[WriteTxnMarkersRequest] = []
        self.code: Callable[[Place], ErrorCode | None] = lambda _: ErrorCode.NONE
        """None: no answer comes."""
        self.local_code = ErrorCode.NONE
        self.gate: asyncio.Event | None = None
        self._subscribers: list[Callable[[ClusterImage, ClusterImage], None]] = []
        self.sender = MarkerSender(cast(Any, self), lambda: cast(Any, self), self._write)
        self.live = Live()

    def subscribe(self, callback: Callable[[ClusterImage, ClusterImage], None]) -> Callable[[], None]:
        self._subscribers.append(callback)
        return lambda: None

    def become(self, image: ClusterImage) -> None:
        old, self.image = self.image, image
        for callback in self._subscribers:
            callback(old, image)

    async def confirmed(self) -> bool:
        return self.sure

    def _write(
        self, ending: Ending, places: Collection[Place], told: Callable[[Place, ErrorCode], None]
    ) -> None:
        for place in places:
            told(place, self.local_code)

    async def ask(
        self, broker: int, request: WriteTxnMarkersRequest, response: type[WriteTxnMarkersResponse]
    ) -> WriteTxnMarkersResponse:
        assert broker == THERE
        self.requests.append(request)
        if self.gate is not None:
            await self.gate.wait()
        answer = WriteTxnMarkersResponse()
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                results = []
                for index in topic.partition_indexes:
                    code = self.code(Place(topic.name, index))
                    if code is None:
                        raise PeerError("It is not there.")
                    results.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
            answer.markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        return answer

    def send(self, *places: Place, producer_id: int = 7) -> None:
        ending = Ending(producer_id, 3, committed=True, coordinator_epoch=5, version=2)
        self.sender.send(cast(Any, self.live), Marking("x", ending, frozenset(places)))

    async def all_written(self, *places: Place) -> None:
        await eventually(lambda: sorted(self.live.written) == sorted(places), "the markers are written")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSE_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(sending, "PAUSE_MAX_SECONDS", 0.005)


async def test_what_this_broker_leads_costs_no_request() -> None:
    world = World()
    world.send(LOCAL)
    assert world.live.written == [LOCAL], "in the moment in which the marker is durable"
    assert not world.requests


async def test_one_request_for_all_partitions_of_a_broker() -> None:
    world = World()
    world.send(LOCAL, REMOTE, OTHER)
    await world.all_written(LOCAL, REMOTE, OTHER)
    (request,) = world.requests
    (marker,) = request.markers
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [1, 2])]
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, True)
    assert (marker.coordinator_epoch, marker.transaction_version) == (5, 2)


async def test_what_is_decided_meanwhile_shares_the_next_request() -> None:
    world = World()
    world.gate = asyncio.Event()
    for producer_id in range(5):
        world.send(REMOTE, producer_id=producer_id)
    # The same producer again: an answer names producers, so it has a request of its own.
    world.send(REMOTE, producer_id=3)
    await eventually(lambda: world.requests, "the first request is sent")
    world.send(REMOTE, producer_id=9)
    world.gate.set()
    await world.all_written(*[REMOTE] * 7)
    carried = [[marker.producer_id for marker in request.markers] for request in world.requests]
    assert carried == [[0, 1, 2, 3, 4], [3, 9]]


@pytest.mark.parametrize(
    "code",
    [None, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR],
)
async def test_what_failed_is_sent_again(code: ErrorCode | None) -> None:
    world = World()
    answers = iter([code, ErrorCode.NONE, code, ErrorCode.NONE])
    world.code = lambda _: next(answers)
    world.send(REMOTE)
    await world.all_written(REMOTE)
    world.send(OTHER)
    await world.all_written(REMOTE, OTHER)
    assert len(world.requests) == 4


async def test_only_what_failed_is_sent_again() -> None:
    world = World()
    codes = {REMOTE: iter([ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]), OTHER: iter([ErrorCode.NONE])}
    world.code = lambda place: next(codes[place])
    world.send(REMOTE, OTHER)
    await world.all_written(REMOTE, OTHER)


async def test_a_new_leader_is_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSE_FIRST_SECONDS", 3600.0)
    world = World()
    world.code = lambda _: ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.send(REMOTE)
    await eventually(lambda: world.requests, "the old leader refused")
    await asyncio.sleep(0)
    assert not world.live.written
    await eventually(lambda: not world.sender._waiting, "the answer was taken")
    world.become(image_of(HERE, HERE, THERE))
    await world.all_written(REMOTE)


async def test_a_partition_without_a_leader_is_waited_for() -> None:
    world = World()
    world.image = image_of(HERE, -1, THERE)
    world.send(REMOTE)
    await asyncio.sleep(0)
    assert not world.live.written
    world.become(image_of(HERE, THERE, THERE))
    await world.all_written(REMOTE)


async def test_a_topic_that_is_gone_needs_no_marker_but_only_if_that_is_sure() -> None:
    world = World()
    world.sure = False
    gone = Place("gone", 0)
    world.send(gone, LOCAL)
    await world.all_written(LOCAL)
    world.sure = True
    await world.all_written(LOCAL, gone)
    assert not world.requests


@pytest.mark.parametrize("code", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
async def test_a_fence_ends_the_sending(code: ErrorCode) -> None:
    world = World()
    world.code = lambda place: code if place == REMOTE else ErrorCode.REQUEST_TIMED_OUT
    world.send(REMOTE, OTHER)
    await eventually(lambda: world.requests, "the request is sent")
    await eventually(lambda: not world.sender._tasks._running, "nothing is under way")
    assert len(world.requests) == 1
    assert not world.live.written


async def test_a_shard_that_serves_no_more_sends_nothing() -> None:
    world = World()
    world.code = lambda _: None
    world.send(REMOTE)
    await eventually(lambda: world.requests, "the request is sent")
    world.live.serves, world.live.closed = False, True
    await eventually(lambda: not world.sender._tasks._running, "nothing is under way")
    sent = len(world.requests)
    world.code = lambda _: ErrorCode.NONE
    world.become(msgspec.structs.replace(world.image, topics=dict(world.image.topics)))
    await asyncio.sleep(0)
    assert len(world.requests) == sent


async def test_markers_outlive_a_hand_over_that_failed() -> None:
    """While the coordinator's partition is about to be given away nothing is sent. It stays, and all is."""
    world = World()
    world.code = lambda _: None
    world.send(LOCAL, REMOTE)
    await eventually(lambda: world.requests, "the request is sent")
    world.live.serves = False
    await asyncio.sleep(0.05)
    sent = len(world.requests)
    world.code = lambda _: ErrorCode.NONE
    world.send(OTHER)
    await asyncio.sleep(0.05)
    assert len(world.requests) == sent
    world.live.serves = True
    await world.all_written(LOCAL, REMOTE, OTHER)


async def test_a_request_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MARKERS_IN_A_REQUEST_MAX", 2)
    world = World()
    for producer_id in range(5):
        world.send(REMOTE, producer_id=producer_id)
    await world.all_written(*[REMOTE] * 5)
    assert [len(request.markers) for request in world.requests] == [2, 2, 1]


async def test_a_request_has_no_more_partitions_than_a_broker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is sent more items closes the connection, and would do so again for ever."""
    assert 2 * sending.PLACES_IN_A_REQUEST_MAX + sending.MARKERS_IN_A_REQUEST_MAX <= ITEMS_MAX
    monkeypatch.setattr(sending, "PLACES_IN_A_REQUEST_MAX", 3)
    world = World()
    world.become(image_of(HERE, *[THERE] * 7))
    places = [Place("t", partition) for partition in range(1, 8)]
    world.gate = asyncio.Event()
    for producer_id in range(3):
        world.send(*places, producer_id=producer_id)
    world.gate.set()
    await world.all_written(*places * 3)
    sizes = [sum(len(m.topics[0].partition_indexes) for m in request.markers) for request in world.requests]
    assert sizes == [3] * 7
