"""How far groups are behind: the lag of each group that this broker coordinates.

The coordinator knows the committed offsets, and the leader of each partition its end. Partitions that are
led here are looked up; leaders elsewhere are asked (ListOffsets), one request each. That is done in the
background when somebody wants to know and the last answer is some seconds old. A group of which one end is
not known has no lag then: none is better than a wrong one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.broker.peers.peers import PeerError
from penstock.transactions.transaction import NAMES
from penstock.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from penstock.broker.context import Broker

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0
PEER_SECONDS = 5.0
FIRST_WAIT_SECONDS = 1.0
"""How long whoever asks first waits for an answer."""
_STEP = 200
"""Groups, or partitions, between two turns of the loop."""
_LATEST = -1

Place = tuple[str, int]
"""Topic and partition."""


class Census:
    """What was found out of all groups at one time."""

    __slots__ = ("lags", "members", "open_transactions", "states", "transactions")

    def __init__(self) -> None:
        self.open_transactions = 0
        self.transactions: dict[str, int] = {}
        """By state."""
        self.states: dict[str, int] = {}
        self.members = 0
        self.lags: dict[str, int] = {}


class GroupLags:
    def __init__(self) -> None:
        self._census = Census()
        self._broker: Broker | None = None
        self._taken_at = -REFRESH_SECONDS
        self._taking: asyncio.Task[None] | None = None

    async def of(self, broker: Broker) -> Census:
        """The newest census; another is begun if it is old."""
        loop = asyncio.get_running_loop()
        fresh = broker is self._broker and loop.time() - self._taken_at < REFRESH_SECONDS
        if not fresh and self._taking is None:
            self._taking = loop.create_task(self._take(broker))
        if broker is not self._broker and self._taking is not None:
            await asyncio.wait((self._taking,), timeout=FIRST_WAIT_SECONDS)
        return self._census if broker is self._broker else Census()

    async def stop(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait((self._taking,))

    async def _take(self, broker: Broker) -> None:
        try:
            self._census = await _counted(broker)
            self._broker = broker
            self._taken_at = asyncio.get_running_loop().time()
        except Exception:
            log.exception("the lag of groups could not be found out")
        finally:
            self._taking = None


async def _counted(broker: Broker) -> Census:
    census = Census()
    for number, key in enumerate(broker.ledger.led()):
        partition = broker.ledger.partition(*key)
        census.open_transactions += len(partition.ongoing) if partition is not None else 0
        if number % _STEP == _STEP - 1:
            await asyncio.sleep(0)
    await _count_transactions(broker, census)
    groups = broker.services.groups_at_work
    if groups is None:
        return census
    committed: dict[str, dict[Place, int]] = {}
    for live in list(groups.live_shards()):
        for number, (group_id, state, members, offsets) in enumerate(list(live.shard.census())):
            census.states[state] = census.states.get(state, 0) + 1
            census.members += members
            if offsets:
                committed[group_id] = {
                    (topic, partition): one.offset
                    for topic, by_partition in offsets.items()
                    for partition, one in by_partition.items()
                }
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)
    ends = await _ends(broker, {place for places in committed.values() for place in places})
    for number, (group_id, places) in enumerate(committed.items()):
        lag = _lag(places, ends)
        if lag is not None:
            census.lags[group_id] = lag
        if number % _STEP == _STEP - 1:
            await asyncio.sleep(0)
    return census


async def _count_transactions(broker: Broker, census: Census) -> None:
    transactions = broker.services.transactions_at_work
    if transactions is None:
        return
    for live in list(transactions.live_shards()):
        for number, (_id, transaction) in enumerate(list(live.shard.listed())):
            state = NAMES[transaction.state]
            census.transactions[state] = census.transactions.get(state, 0) + 1
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)


def _lag(committed: Mapping[Place, int], ends: Mapping[Place, int]) -> int | None:
    """None if an end is not known."""
    lag = 0
    for place, offset in committed.items():
        end = ends.get(place)
        if end is None:
            return None
        lag += max(0, end - offset)
    return lag


async def _ends(broker: Broker, places: Iterable[Place]) -> dict[Place, int]:
    """The ends of partitions, as far as they can be had. A partition that is gone ends nowhere: it is
    nobody's lag."""
    image = broker.image
    ends: dict[Place, int] = {}
    elsewhere: dict[int, dict[str, list[int]]] = {}
    for number, (name, index) in enumerate(places):
        if number % _STEP == _STEP - 1:
            await asyncio.sleep(0)
        topic = image.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            ends[name, index] = 0
            continue
        partition = broker.ledger.partition(topic.id, index)
        if partition is not None and not partition.closed:
            ends[name, index] = partition.high_watermark
        else:
            leader = topic.partitions[index].leader
            elsewhere.setdefault(leader, {}).setdefault(name, []).append(index)
    elsewhere.pop(broker.broker_id, None)
    for found in await asyncio.gather(*(_asked(broker, one, topics) for one, topics in elsewhere.items())):
        ends |= found
    return ends


async def _asked(broker: Broker, leader: int, topics: Mapping[str, list[int]]) -> dict[Place, int]:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=name,
                partitions=[ListOffsetsPartition(partition_index=one, timestamp=_LATEST) for one in indexes],
            )
            for name, indexes in topics.items()
        ],
    )
    try:
        answer = await broker.services.peers.ask(leader, request, ListOffsetsResponse, seconds=PEER_SECONDS)
    except PeerError as error:
        log.info("a leader did not say where its partitions end: %s", error)
        return {}
    return {
        (topic.name, one.partition_index): one.offset
        for topic in answer.topics
        for one in topic.partitions
        if not one.error_code
    }
