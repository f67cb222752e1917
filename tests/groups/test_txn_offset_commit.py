"""TxnOffsetCommit through `handle`: who is let in, what clients of each version are told, and what takes
effect when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.transactions.markers import write_markers
from penstock.metadata.image import OFFSETS_TOPIC
from penstock.storage.ledger.ledger import Partition
from penstock.testing.waiting import eventually
from penstock.transactions.ending import Ending
from penstock.transactions.transaction import Given, Place
from penstock.wire.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from penstock.wire.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.errors import ErrorCode
from tests.broker.coordinators import Asked, FakeCoordinator
from tests.broker.rig import Rig

NONE = ErrorCode.NONE
HERE = Place(OFFSETS_TOPIC, 0)
VERSIONS = range(6)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(tmp_path / "store", offsets_topic_num_partitions=1)
    await made.topic("t", 3)
    await made.ask(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse, 4)
    yield made
    await made.close()


@pytest.fixture
async def coordinator(rig: Rig) -> FakeCoordinator:
    return await FakeCoordinator.on(rig)


def message(offset: int, *, epoch: int = 0, group: str = "g", **fields: Any) -> TxnOffsetCommitRequest:
    asked = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return TxnOffsetCommitRequest(
        transactional_id="id",
        group_id=group,
        producer_id=7,
        producer_epoch=epoch,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[asked])],
        **fields,
    )


async def commit(rig: Rig, offset: int, version: int = 4, **fields: Any) -> ErrorCode:
    answer = await rig.ask(message(offset, **fields), TxnOffsetCommitResponse, version)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


async def end(rig: Rig, *, epoch: int = 0, committed: bool = True, version: int = 1) -> None:
    codes = await write_markers(rig.broker, Ending(7, epoch, committed, 0, version), [HERE])
    assert codes == {HERE: NONE}


async def fetched(rig: Rig, *, stable: bool = True) -> tuple[int, int]:
    """The code and the offset."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)], require_stable=stable
    )
    answer = await rig.ask(request, OffsetFetchResponse, 9)
    (found,) = answer.groups[0].topics[0].partitions
    return found.error_code, found.committed_offset


def partition_of(rig: Rig) -> Partition:
    found = rig.broker.ledger.partition(rig.broker.image.topics[OFFSETS_TOPIC].id, 0)
    assert found is not None
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_first_commit_asks_and_takes_effect_with_the_marker(
    rig: Rig, coordinator: FakeCoordinator, version: int
) -> None:
    assert [await commit(rig, offset, version) for offset in (5, 6)] == [NONE, NONE]
    adds = version >= 5
    assert coordinator.asked == [Asked("id", Given(7, 0), (HERE,), not adds, 2 if adds else 1)]
    assert await fetched(rig) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert await fetched(rig, stable=False) == (0, -1)
    await end(rig, epoch=1 if adds else 0, version=2 if adds else 1)
    assert await fetched(rig) == (0, 6)


async def test_who_was_silent_for_a_while_commits_after_a_look_at_the_log(
    rig: Rig, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage a broker is sure of nothing for a session time-out, and looks each time."""
    monkeypatch.setattr(type(rig.broker), "leads_surely", False)
    assert await commit(rig, 5) == NONE
    assert await commit(rig, 6) == NONE
    await end(rig)
    assert await fetched(rig) == (0, 6)


@pytest.mark.parametrize(
    ("said", "old", "four", "new"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 48, 120, 120),
        (ErrorCode.PRODUCER_FENCED, 47, 47, 47),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 49, 49, 49),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 51, 51, 51),
        (ErrorCode.NOT_COORDINATOR, 16, 16, 16),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 15, 15, 15),
        (ErrorCode.NETWORK_EXCEPTION, 14, 14, 14),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 14, 14, 14),
    ],
)
async def test_what_clients_of_each_version_are_told(
    rig: Rig, coordinator: FakeCoordinator, said: ErrorCode, old: int, four: int, new: int
) -> None:
    coordinator.code = said
    told = {version: (await commit(rig, 5, version)).value for version in VERSIONS}
    expected = {version: new if version >= 5 else four if version == 4 else old for version in told}
    if old == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        expected |= {0: ErrorCode.COORDINATOR_NOT_AVAILABLE, 1: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert told == expected
    assert await fetched(rig) == (0, -1)


async def test_an_old_epoch(rig: Rig, coordinator: FakeCoordinator) -> None:
    assert await commit(rig, 5, epoch=3) is NONE
    coordinator.code = ErrorCode.PRODUCER_FENCED
    assert await commit(rig, 6, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    await end(rig, epoch=3)
    assert await fetched(rig) == (0, 5)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_marker_that_overtakes_the_first_commit_makes_it_fail(
    rig: Rig, coordinator: FakeCoordinator, version: int
) -> None:
    answer = coordinator.hold()
    waiting = asyncio.ensure_future(commit(rig, 5, version))
    await eventually(lambda: bool(coordinator.asked))
    await end(rig, committed=False)
    answer.set_result(None)
    assert await waiting is ErrorCode.INVALID_TXN_STATE
    assert await fetched(rig) == (0, -1)
    assert partition_of(rig).last_stable_offset == partition_of(rig).high_watermark


async def test_each_partition_has_its_own_code_in_its_place(rig: Rig, coordinator: FakeCoordinator) -> None:
    request = message(5)
    request.topics = [
        TxnOffsetCommitRequestTopic(
            name=name,
            partitions=[
                TxnOffsetCommitRequestPartition(
                    partition_index=index, committed_offset=5, committed_metadata="m" * size
                )
                for index, size in partitions
            ],
        )
        for name, partitions in (("absent", [(0, 1)]), ("t", [(3, 1), (0, 1), (1, 5000), (2, 1)]))
    ]
    answer = await rig.ask(request, TxnOffsetCommitResponse, 4)
    codes = [(t.name, [(p.partition_index, p.error_code) for p in t.partitions]) for t in answer.topics]
    assert codes == [("absent", [(0, 3)]), ("t", [(3, 3), (0, 0), (1, 12), (2, 0)])]


async def test_nothing_is_asked_for_topics_that_are_absent(rig: Rig, coordinator: FakeCoordinator) -> None:
    request = message(5)
    request.topics[0].name = "absent"
    answer = await rig.ask(request, TxnOffsetCommitResponse, 5)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert coordinator.asked == []


async def test_a_group_without_a_name(rig: Rig, coordinator: FakeCoordinator) -> None:
    assert await commit(rig, 5, group="") is ErrorCode.INVALID_GROUP_ID


async def test_the_member_is_checked_if_one_is_named(rig: Rig, coordinator: FakeCoordinator) -> None:
    assert await commit(rig, 5, generation_id=1) is ErrorCode.ILLEGAL_GENERATION, "an unknown group"
    joins = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    joined = await rig.ask(joins, ConsumerGroupHeartbeatResponse, 1)
    epoch = joined.member_epoch
    assert await commit(rig, 5, member_id="m", generation_id=epoch) is NONE
    assert await commit(rig, 5, member_id="m", generation_id=epoch + 1) is ErrorCode.ILLEGAL_GENERATION
    assert await commit(rig, 5, member_id="other", generation_id=epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(rig, 6, 2) is NONE, "older versions name nobody"
    await end(rig)
    assert await fetched(rig) == (0, 6)


async def test_while_another_broker_coordinates_the_group(rig: Rig, coordinator: FakeCoordinator) -> None:
    partition = partition_of(rig)
    answer = coordinator.hold()
    waiting = asyncio.ensure_future(commit(rig, 5))
    await eventually(lambda: bool(coordinator.asked))
    partition.closed = True  # It was handed over meanwhile.
    answer.set_result(None)
    assert await waiting in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    partition.closed = False
