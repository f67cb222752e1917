"""Has the markers of decided transactions written, by the leaders of their partitions.

Partitions that this broker leads cost no request. Every other leader gets one WriteTxnMarkers request at a
time; what is decided meanwhile goes into the next one. What could not be written is tried again, with a pause
that grows, at the partition's leader of that time. A new image ends the pause, since it may name another
leader.

- A partition that the newest image does not have needs no marker: its topic was deleted.
- TRANSACTION_COORDINATOR_FENCED says that another broker coordinates this transaction now, and
  INVALID_PRODUCER_EPOCH that its producer is past it. Either ends the sending, as in Kafka: a coordinator
  that has the right to go on sends the markers again when it loads.
- Any other code, and no answer at all, is tried again for as long as this broker coordinates the transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from penstock.broker.peers.peers import PeerError
from penstock.broker.tasks import Tasks
from penstock.transactions.core import Codes, Marking
from penstock.transactions.ending import Ending
from penstock.transactions.shard import TransactionShard
from penstock.transactions.transaction import Place
from penstock.wire.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.codec import ITEMS_MAX
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.peers.peers import Peers
    from penstock.broker.shards.live import LiveShard
    from penstock.cluster.metadata_log import MetadataLog
    from penstock.metadata.image import ClusterImage

log = logging.getLogger(__name__)

PAUSE_FIRST_SECONDS = 0.05
PAUSE_MAX_SECONDS = 1.0
"""How long markers rest that could not be written; doubled from the first to the last."""
MARKERS_IN_A_REQUEST_MAX = 1_000
"""Of so many transactions markers go into one request, so that no request grows without bound."""
PLACES_IN_A_REQUEST_MAX = ITEMS_MAX // 4
"""So many partitions may they have together: each may be of a topic of its own, and so be two items."""

Write = Callable[[Ending, Collection[Place], Callable[[Place, ErrorCode], None]], None]
"""Begin to write markers into partitions that this broker leads. The last argument is called once for each
place: NONE when its marker is durable."""

_ENDS_SENDING = (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class Surroundings(Protocol):
    """What the sender asks of its broker."""

    broker_id: int
    metadata: MetadataLog

    async def confirmed(self) -> bool: ...


class _Sending:
    """One decided transaction on its way to its partitions."""

    __slots__ = ("ending", "live", "pause_seconds", "refused", "transactional_id")

    def __init__(self, live: LiveShard[TransactionShard], marking: Marking) -> None:
        self.live = live
        self.transactional_id = marking.transactional_id
        self.ending = marking.ending
        self.pause_seconds = PAUSE_FIRST_SECONDS
        self.refused = False

    @property
    def over(self) -> bool:
        return self.live.closed or self.refused

    @property
    def may_go(self) -> bool:
        """False also while the coordinator's partition is being handed over: if that fails, it stays here,
        and so do the markers that are missing."""
        return self.live.serves and not self.refused

    def written(self, places: Collection[Place]) -> None:
        self.live.tell(TransactionShard.markers_written, self.transactional_id, self.ending, places)


_Load = tuple[_Sending, list[Place]]


class MarkerSender:
    """A service."""

    def __init__(self, broker: Surroundings, peers: Callable[[], Peers], write: Write) -> None:
        """`peers`: asked for when another broker is to be reached for the first time."""
        self._broker = broker
        self._metadata = broker.metadata
        self._peers = peers
        self._write = write
        self._waiting: dict[int, list[_Load]] = {}
        """By broker, what is to be sent to it. A broker that is in here has a task that sends."""
        self._tasks = Tasks()
        self._new_image = asyncio.Event()
        self._unsubscribe = self._metadata.subscribe(self._follow)

    async def stop(self) -> None:
        self._unsubscribe()
        await self._tasks.stop()

    def send(self, live: LiveShard[TransactionShard], marking: Marking) -> None:
        """Until all partitions have their marker, or this broker coordinates the transaction no more."""
        # In an order that a set of names does not have: a simulation plays the same twice.
        self._dispatch(_Sending(live, marking), sorted(marking.places))

    # -- to the leaders --------------------------------------------------------------------------------

    def _dispatch(self, sending: _Sending, places: Iterable[Place]) -> None:
        image = self._metadata.image
        missing: list[Place] = []
        by_leader: dict[int, list[Place]] = {}
        for place in places:
            leader = _leader(image, place)
            if leader is None:
                missing.append(place)
            else:
                by_leader.setdefault(leader, []).append(place)
        if missing:
            self._tasks.spawn(self._look_again(sending, missing))
        for leader, led in by_leader.items():
            if leader == self._broker.broker_id:
                self._write_here(sending, led)
            elif image.is_live(leader):
                self._queue(leader, sending, led)
            else:
                self._later(sending, led)

    async def _look_again(self, sending: _Sending, places: list[Place]) -> None:
        """Partitions that the image at hand does not have: are they gone, or just created elsewhere?"""
        sure = await self._broker.confirmed()
        image = self._metadata.image
        gone = [place for place in places if _leader(image, place) is None]
        if sure and gone:
            log.info(
                "partitions without a topic need no marker transactional_id=%s partitions=%d",
                sending.transactional_id,
                len(gone),
            )
            sending.written(gone)
            places = [place for place in places if _leader(image, place) is not None]
        if places:
            self._later(sending, places)

    def _write_here(self, sending: _Sending, places: list[Place]) -> None:
        """Without a task: the shard is told in the moment in which the last marker is durable."""
        codes: Codes = {}

        def told(place: Place, code: ErrorCode) -> None:
            codes[place] = code
            if len(codes) == len(places):
                self._judge(sending, places, codes)

        self._write(sending.ending, places, told)

    def _queue(self, leader: int, sending: _Sending, places: list[Place]) -> None:
        waiting = self._waiting.get(leader)
        if waiting is None:
            self._waiting[leader] = [(sending, places)]
            self._tasks.spawn(self._send_to(leader))
        else:
            waiting.append((sending, places))

    async def _send_to(self, leader: int) -> None:
        """One request after the other, until nothing waits for this broker."""
        try:
            while waiting := self._waiting[leader]:
                now, self._waiting[leader] = _parted(waiting)
                for sending, places in now:
                    if not sending.may_go:
                        self._later(sending, places)
                await self._ask(leader, [load for load in now if load[0].may_go])
        finally:
            del self._waiting[leader]

    async def _ask(self, leader: int, loads: list[_Load]) -> None:
        if not loads:
            return
        request = WriteTxnMarkersRequest(markers=[_marker(sending.ending, led) for sending, led in loads])
        try:
            answer = await self._peers().ask(leader, request, WriteTxnMarkersResponse)
            codes = _codes(answer)
        except PeerError as error:
            log.info("markers were not taken broker=%d transactions=%d: %s", leader, len(loads), error)
            codes = {}
        for sending, led in loads:
            self._judge(sending, led, codes.get(sending.ending.producer_id, {}))

    # -- what came of it -------------------------------------------------------------------------------

    def _judge(self, sending: _Sending, places: list[Place], codes: Codes) -> None:
        written: list[Place] = []
        again: list[Place] = []
        for place in places:
            code = codes.get(place)
            if code is ErrorCode.NONE:
                written.append(place)
            elif code in _ENDS_SENDING:
                sending.refused = True
                log.warning(
                    "a marker was refused, and no more are sent transactional_id=%s partition=%s-%d code=%s",
                    sending.transactional_id,
                    place.topic,
                    place.partition,
                    code,
                )
            else:
                again.append(place)
        if written:
            sending.written(written)
        if again:
            self._later(sending, again)

    def _later(self, sending: _Sending, places: list[Place]) -> None:
        if not sending.over:
            self._tasks.spawn(self._again(sending, places))

    async def _again(self, sending: _Sending, places: list[Place]) -> None:
        pause = sending.pause_seconds
        sending.pause_seconds = min(2 * pause, PAUSE_MAX_SECONDS)
        try:
            async with asyncio.timeout(pause):
                await self._new_image.wait()
        except TimeoutError:
            pass
        if sending.may_go:
            self._dispatch(sending, places)
        else:
            self._later(sending, places)

    def _follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.topics is not new.topics or old.brokers is not new.brokers:
            self._new_image.set()
            self._new_image = asyncio.Event()


def _leader(image: ClusterImage, place: Place) -> int | None:
    """Who leads it; -1 if nobody does, None if there is no such partition."""
    topic = image.topics.get(place.topic)
    if topic is None or not 0 <= place.partition < len(topic.partitions):
        return None
    return topic.partitions[place.partition].leader


def _parted(waiting: list[_Load]) -> tuple[list[_Load], list[_Load]]:
    """What goes into the next request, and what waits for the one after it. A producer is in it once, because
    answers name producers."""
    now: dict[int, _Load] = {}
    then: list[_Load] = []
    room = PLACES_IN_A_REQUEST_MAX
    for load in waiting:
        sending, places = load
        producer_id = sending.ending.producer_id
        if producer_id in now or len(now) == MARKERS_IN_A_REQUEST_MAX or not room:
            then.append(load)
            continue
        now[producer_id] = sending, places[:room]
        if len(places) > room:
            then.append((sending, places[room:]))
        room -= min(room, len(places))
    return list(now.values()), then


def _marker(ending: Ending, places: Iterable[Place]) -> WritableTxnMarker:
    by_topic: dict[str, list[int]] = {}
    for place in places:
        by_topic.setdefault(place.topic, []).append(place.partition)
    return WritableTxnMarker(
        producer_id=ending.producer_id,
        producer_epoch=ending.producer_epoch,
        transaction_result=ending.committed,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in by_topic.items()
        ],
        coordinator_epoch=ending.coordinator_epoch,
        transaction_version=ending.version,
    )


def _codes(answer: WriteTxnMarkersResponse) -> dict[int, Codes]:
    """By producer id."""
    return {
        marker.producer_id: {
            Place(topic.name, partition.partition_index): _code(partition.error_code)
            for topic in marker.topics
            for partition in topic.partitions
        }
        for marker in answer.markers
    }


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
