"""Produce's `timeout_ms`: what is not durable when it is over is said to be so, on both ways through the
handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.produce import route as produce_route
from penstock.storage.ledger import flusher
from penstock.storage.stores.memory import MemoryStore
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from tests.broker.rig import Rig, batch


class StuckStore(MemoryStore):
    """Writes of records take as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(self, key: str, *parts: Buffer) -> bool:
        if key.startswith("wal/"):
            await self.gate.wait()
        return await super().create(key, *parts)


@pytest.fixture
async def store() -> StuckStore:
    return StuckStore()


@pytest.fixture
async def stuck(tmp_path: Path, store: StuckStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(produce_route, "_SECONDS_MIN", 0.01)
    monkeypatch.setattr(flusher, "TICK_SECONDS", 0.005)
    rig = await Rig.start(tmp_path, store=store)
    await rig.topic("t", 2)
    yield rig
    store.gate.set()
    await rig.close()


def produce(
    sequence: int, timeout_ms: int, *, indexes: tuple[int, ...] = (0,), acks: int = -1
) -> ProduceRequest:
    data = [
        PartitionProduceData(
            index=index,
            records=batch(b"v%d" % sequence, producer_id=5, producer_epoch=0, base_sequence=sequence),
        )
        for index in indexes
    ]
    return ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )


async def ask(rig: Rig, request: ProduceRequest) -> list[tuple[int, int]]:
    answer = await rig.ask(request, ProduceResponse, 9)
    return [(one.error_code, one.base_offset) for one in answer.responses[0].partition_responses]


@pytest.mark.parametrize("indexes", [(0,), (0, 1)])
async def test_a_batch_in_doubt_is_told_of_and_found_when_it_is_sent_again(
    stuck: Rig, store: StuckStore, indexes: tuple[int, ...]
) -> None:
    # The second and later requests of a connection with one partition take the fast way.
    for sequence in range(2):
        assert await ask(stuck, produce(sequence, 10_000, indexes=indexes)) == [(0, sequence)] * len(indexes)
    store.gate.clear()
    timed_out = [(ErrorCode.REQUEST_TIMED_OUT, -1)] * len(indexes)
    assert await ask(stuck, produce(2, 1, indexes=indexes)) == timed_out
    again = stuck.send(produce(2, 10_000, indexes=indexes), 9)
    store.gate.set()
    assert isinstance(again, Reply)
    await stuck.finished(again)
    assert await ask(stuck, produce(2, 10_000, indexes=indexes)) == [(0, 2)] * len(indexes)
    assert await ask(stuck, produce(3, 10_000, indexes=indexes)) == [(0, 3)] * len(indexes)


async def test_without_acknowledgements_there_is_no_time(stuck: Rig, store: StuckStore) -> None:
    store.gate.clear()
    reply = stuck.send(produce(0, 1, acks=0), 9)
    assert isinstance(reply, Reply)
    assert await ask(stuck, produce(1, 10)) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    assert not reply.done, "its time was over first"
    store.gate.set()
    assert await stuck.finished(reply) is None
    assert not reply.closed


async def test_a_time_that_is_too_short_is_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [produce_route.seconds_for(-1, value) for value in (-1, 0, 999, 30_000)] == [1, 1, 1, 30]
