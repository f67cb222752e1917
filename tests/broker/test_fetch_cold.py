"""Fetches of records that a store takes its time to give: others are answered meanwhile, and they at last."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.fetch import cold as fetch_cold
from penstock.server.memory import Memory
from penstock.storage.partitions.settings import LedgerSettings
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreUnavailableError
from penstock.testing.waiting import eventually
from penstock.wire.api.fetch import FetchResponse, PartitionData
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.markers import ABORT, marker_batch
from tests.broker.rig import Rig, batch
from tests.broker.test_fetch import fetch, fill, request, values


class Stored(bytearray):
    """Bytes from the store, of which one can tell when nobody has them any more."""


class GatedStore(MemoryStore):
    """Gives ranges of objects once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken = False
        self.ranges: list[tuple[str, int, int]] = []
        self.given: list[weakref.ref[Stored]] = []

    async def get_range(self, key: str, start: int, length: int) -> Stored:  # type: ignore[override]
        self.ranges.append((key, start, length))
        await self.gate.wait()
        if self.broken:
            raise StoreUnavailableError("the store is out")
        found = Stored(await super().get_range(key, start, length))
        self.given.append(weakref.ref(found))
        return found


@pytest.fixture
async def store() -> GatedStore:
    return GatedStore()


@pytest.fixture
async def slow(tmp_path: Path, store: GatedStore) -> AsyncIterator[Rig]:
    """Only the newest batch is in memory: `hot` has it, `cold` does not. The gate is closed."""
    rig = await Rig.start(tmp_path, store=store, ledger_settings=LedgerSettings(tail_cache_bytes=1))
    await rig.topic("hot")
    await rig.topic("cold", 3)
    for index in range(3):
        await fill(rig, "cold", batch(b"c%d" % index), batch(b"more"), index=index)
    await fill(rig, "hot", batch(b"h"))
    store.gate.clear()
    yield rig
    store.gate.set()
    await rig.close()


def of(partitions: list[PartitionData]) -> list[list[bytes | None]]:
    assert all(one.error_code == 0 for one in partitions)
    return [values(one) for one in partitions]


async def ask_later(rig: Rig, version: int, asked: Any, **fields: Any) -> tuple[Reply, Any]:
    reply = rig.send(request(rig, version, asked, **fields), version)
    assert isinstance(reply, Reply)
    return reply, rig.finished(reply)


async def test_hot_partitions_are_answered_at_once_beside_a_cold_one(slow: Rig, store: GatedStore) -> None:
    asked = [("cold", 0, 0), ("hot", 0, 0)]
    for _ in range(3):
        async with asyncio.timeout(60):
            assert of(await fetch(slow, 11, asked, max_wait_ms=60_000)) == [[], [b"h"]]
    store.gate.set()
    async with asyncio.timeout(60):
        while of(await fetch(slow, 11, asked, max_wait_ms=60_000))[0] == []:
            pass
    assert len(store.ranges) == 1, "the read that was begun is the one that is answered with"


async def test_a_record_that_comes_is_told_while_a_cold_read_is_under_way(slow: Rig) -> None:
    asked = [("cold", 0, 0), ("hot", 0, 1)]
    reply, finished = await ask_later(slow, 11, asked, max_wait_ms=60_000)
    await asyncio.sleep(0)
    assert not reply.done
    await fill(slow, "hot", batch(b"new"))
    async with asyncio.timeout(60):
        assert await finished is not None


async def test_hot_partitions_have_an_end_at_max_wait_though_there_is_too_little(slow: Rig) -> None:
    asked = [("cold", 0, 0), ("hot", 0, 0)]
    async with asyncio.timeout(60):
        assert of(await fetch(slow, 11, asked, max_wait_ms=10, min_bytes=10_000)) == [[], [b"h"]]


async def test_an_answer_with_nothing_waits_for_the_store_a_little(slow: Rig, store: GatedStore) -> None:
    _reply, finished = await ask_later(slow, 11, [("cold", 0, 0)], max_wait_ms=0)
    await eventually(lambda: store.ranges, "the read")
    store.gate.set()
    async with asyncio.timeout(60):
        buffers = await finished
    assert b"c0" in b"".join(buffers)


async def test_an_answer_with_nothing_does_not_wait_for_ever(slow: Rig) -> None:
    async with asyncio.timeout(60):
        assert of(await fetch(slow, 11, [("cold", 0, 0), ("cold", 1, 0)], max_wait_ms=1)) == [[], []]


async def test_a_cold_read_that_fails_is_told(slow: Rig, store: GatedStore) -> None:
    asked = [("cold", 0, 0), ("hot", 0, 0)]
    assert of(await fetch(slow, 11, asked, max_wait_ms=10)) == [[], [b"h"]]
    store.broken = True
    store.gate.set()
    async with asyncio.timeout(60):
        while True:
            cold, hot = await fetch(slow, 11, asked, max_wait_ms=10)
            if cold.error_code:
                break
    assert (cold.error_code, values(hot)) == (ErrorCode.KAFKA_STORAGE_ERROR, [b"h"])
    store.broken = False
    assert of(await fetch(slow, 11, [("cold", 0, 0)], max_wait_ms=60_000))[0][0] == b"c0"


async def test_a_read_that_was_kept_keeps_to_the_limits_of_now(slow: Rig, store: GatedStore) -> None:
    assert of(await fetch(slow, 11, [("cold", 0, 0), ("hot", 0, 0)], max_wait_ms=1)) == [[], [b"h"]]
    store.gate.set()
    small = {"max_wait_ms": 60_000, "partition_max_bytes": 1}
    assert of(await fetch(slow, 11, [("cold", 0, 0)], **small)) == [[b"c0"]]
    # There is no room beside what comes first, but the read is kept for the next fetch.
    reads = fetch_cold.cold_reads_of(slow.session)
    assert reads is not None
    store.gate.clear()
    both = [("cold", 1, 0), ("hot", 0, 0)]
    assert of(await fetch(slow, 11, both, max_wait_ms=1)) == [[], [b"h"]]
    store.gate.set()
    await eventually(lambda: all(read.done for read in reads._reads.values()), "the read")
    turned = [("hot", 0, 0), ("cold", 1, 0)]
    assert of(await fetch(slow, 11, turned, max_wait_ms=1, max_bytes=1)) == [[b"h"], []]
    ranges = len(store.ranges)
    assert of(await fetch(slow, 11, both, max_wait_ms=1, max_bytes=1)) == [[b"c1"], []]
    assert len(store.ranges) == ranges


async def test_what_cold_reads_hold_is_counted_and_given_back(
    slow: Rig, store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_cold, "KEPT_SECONDS", 0.01)
    memory = slow.session.memory = Memory(100_000_000, lambda: None, lambda: None, lambda: None)
    both = [("cold", 0, 0), ("hot", 0, 0)]
    assert of(await fetch(slow, 11, both, max_wait_ms=1)) == [[], [b"h"]]
    assert memory.used == 2_000_000
    # Another place is read from: the read that nobody waits for counts until it ends.
    assert of(await fetch(slow, 11, [("cold", 0, 1), ("hot", 0, 0)], max_wait_ms=1)) == [[], [b"h"]]
    assert memory.used == 4_000_000
    store.gate.set()
    await eventually(lambda: not memory.used, "the end of all reads")
    assert of(await fetch(slow, 11, [("cold", 0, 0)], max_wait_ms=60_000)) == [[b"c0", b"more"]]
    assert memory.used == 0


async def test_what_was_answered_is_not_kept(slow: Rig, store: GatedStore) -> None:
    store.gate.set()
    assert of(await fetch(slow, 11, [("cold", 0, 0)], max_wait_ms=60_000)) == [[b"c0", b"more"]]
    await asyncio.sleep(0)
    assert store.given
    assert not any(given() is not None for given in store.given), "a timer has what its read gave"


async def test_reads_under_way_stay_within_two_answers(slow: Rig, store: GatedStore) -> None:
    memory = slow.session.memory = Memory(100_000_000, lambda: None, lambda: None, lambda: None)
    asked = [("cold", index, 0) for index in range(3)]
    await fetch(slow, 11, asked, max_wait_ms=1, max_bytes=500_000, partition_max_bytes=500_000)
    assert len(store.ranges) == 2
    assert memory.used == 2 * 2 * 500_000
    # Asking elsewhere begins nothing while these are under way.
    asked = [("cold", index, 1) for index in range(3)]
    await fetch(slow, 11, asked, max_wait_ms=1, max_bytes=500_000, partition_max_bytes=500_000)
    assert memory.used <= 2 * 3 * 500_000


async def test_nothing_is_read_while_no_memory_is_left(slow: Rig, store: GatedStore) -> None:
    memory = slow.session.memory = Memory(1_000_000, lambda: None, lambda: None, lambda: None)
    memory.hold(2_000_000)
    assert of(await fetch(slow, 11, [("cold", 0, 0), ("hot", 0, 0)], max_wait_ms=100)) == [[], []]
    assert not store.ranges
    reply, finished = await ask_later(slow, 11, [("hot", 0, 0)], max_wait_ms=60_000)
    await asyncio.sleep(0)
    assert not reply.done
    memory.free(2_000_000)
    async with asyncio.timeout(60):
        assert b"".join(await finished)


async def test_what_compaction_forgets_during_a_read_is_told_of_the_records_that_were_read(
    slow: Rig, store: GatedStore
) -> None:
    store.gate.set()
    await slow.topic("kept")
    aborted = batch(b"aborted", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    await fill(slow, "kept", aborted, marker_batch(ABORT, 7, 0, 0, 5))
    await fill(slow, "hot", batch(b"newer"))
    store.gate.clear()
    partition = slow.broker.ledger.partition(slow.broker.image.topics["kept"].id, 0)
    assert partition is not None
    assert of(await fetch(slow, 11, [("kept", 0, 0)], max_wait_ms=1, isolation_level=1)) == [[]]
    # Two passes of the cleaner have taken the records and their marker away, from where later reads look.
    partition.forget_aborted(partition.aborted)
    store.gate.set()
    async with asyncio.timeout(60):
        (found,) = await fetch(slow, 11, [("kept", 0, 0)], max_wait_ms=60_000, isolation_level=1)
    assert b"aborted" in values(found)
    told = found.aborted_transactions
    assert told is not None
    assert [(one.producer_id, one.first_offset) for one in told] == [(7, 0)]


async def test_read_committed_after_a_wait_tells_aborted_transactions_from_its_offset_on(
    slow: Rig, store: GatedStore
) -> None:
    transactional = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    for first in (0, 1):
        await fill(slow, "cold", batch(b"gone", base_sequence=first, **transactional), index=2)
        await fill(slow, "cold", marker_batch(ABORT, 7, 0, 0, 5), index=2)
    await fill(slow, "hot", batch(b"newest"))
    store.gate.set()
    answer = await slow.ask(
        request(slow, 11, [("cold", 2, 4)], max_wait_ms=60_000, isolation_level=1), FetchResponse, 11
    )
    (cold,) = answer.responses[0].partitions
    aborted = cold.aborted_transactions
    assert aborted is not None
    assert [one.first_offset for one in aborted] == [4]
