"""Transactions over several brokers: markers at other leaders, and the death of a leader or a coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.metadata.image import TRANSACTIONS_TOPIC
from penstock.testing.waiting import eventually
from penstock.transactions.core import Marking
from penstock.transactions.transaction import State
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.errors import ErrorCode

from ..transactions.producer import Producer
from .nodes import Nodes
from .test_reassignments import create

NAME = "x"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    made = Nodes(tmp_path / "store", transaction_state_log_num_partitions="1")
    await made.start(1, 2, 3)
    await create(made, "t", (1, 2), (2, 3), (3, 2))
    # The coordinator is broker 1.
    await create(made, TRANSACTIONS_TOPIC, (1, 2))
    for node in made.nodes.values():
        await node.broker.metadata.catch_up()
    yield made
    await made.close()


async def producer_at(nodes: Nodes, broker: int) -> Producer:
    async def ask(message: Any, response: type[Any], version: int) -> Any:
        return await nodes.ask(broker, message, response, version)

    return Producer(nodes.nodes[broker].broker, ask, NAME)


def ends(nodes: Nodes) -> list[int]:
    """How many records each partition has, by the word of its leader."""
    found = []
    for index in range(3):
        broker = next(iter(nodes.nodes.values())).broker
        topic = broker.image.topics["t"]
        leader = nodes.nodes.get(topic.partitions[index].leader)
        partition = leader and leader.broker.ledger.partition(topic.id, index)
        found.append(partition.high_watermark if partition else -1)
    return found


async def test_every_broker_names_the_same_coordinator(nodes: Nodes) -> None:
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=[NAME, "y"])
    for broker in (1, 2, 3):
        answer = await nodes.ask(broker, request, FindCoordinatorResponse, 6)
        assert [(one.error_code, one.node_id) for one in answer.coordinators] == [(0, 1), (0, 1)]
    elsewhere = await producer_at(nodes, 2)
    assert await elsewhere.begin() == ErrorCode.NOT_COORDINATOR


async def test_each_leader_writes_its_markers(nodes: Nodes) -> None:
    producer = await producer_at(nodes, 1)
    await producer.begin()
    assert await producer.add("t", 0, 1, 2) == [ErrorCode.NONE] * 3
    assert await producer.end() == ErrorCode.NONE
    await producer.ended(State.COMPLETE_COMMIT)
    assert ends(nodes) == [1, 1, 1]


async def test_a_leader_that_died_has_a_successor_that_writes_them(nodes: Nodes) -> None:
    producer = await producer_at(nodes, 1)
    await producer.begin()
    await producer.add("t", 0, 1, 2)
    await nodes.kill(3)
    assert await producer.end(commit=False) == ErrorCode.NONE
    await producer.ended(State.COMPLETE_ABORT)
    assert ends(nodes) == [1, 1, 1]


async def test_the_next_coordinator_goes_on_with_what_was_decided(nodes: Nodes) -> None:
    producer = await producer_at(nodes, 1)
    await producer.begin()
    await producer.add("t", 0, 1, 2)
    # It dies when the decision is durable, and before any marker is sent.
    unsent: list[Marking] = []
    coordinator = nodes.nodes[1].broker.services.transactions
    coordinator._send = lambda live, marking: unsent.append(marking)
    assert await producer.end() == ErrorCode.NONE
    assert len(unsent) == 1
    await nodes.kill(1)

    def taken_over() -> bool:
        image = nodes.image(2)
        return image.topics[TRANSACTIONS_TOPIC].partitions[0].leader == 2 and not any(
            partition.leader == 1 for partition in image.topics["t"].partitions
        )

    await eventually(taken_over, "broker 2 coordinates")
    successor = await producer_at(nodes, 2)
    successor.id, successor.epoch = producer.id, producer.epoch
    await successor.ended(State.COMPLETE_COMMIT)
    await eventually(lambda: ends(nodes) == [1, 1, 1], "each partition has its marker")
    # The same producer goes on.
    assert await successor.add("t", 1) == [ErrorCode.NONE]
    assert await successor.end() == ErrorCode.NONE
    await successor.ended(State.COMPLETE_COMMIT)
    assert ends(nodes) == [1, 2, 1]
