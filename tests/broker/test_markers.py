"""Markers: what ends a transaction in the partitions of this broker, and the offsets that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.shards import loading
from penstock.broker.transactions.markers import write_markers
from penstock.groups.shard import GroupShard
from penstock.log.guards import NOT_ASKED
from penstock.log.markers import Marker, MarkerKind, parse_marker
from penstock.metadata.commands import RegisterBroker
from penstock.metadata.image import OFFSETS_TOPIC, Listener
from penstock.storage.ledger.ledger import Partition
from penstock.storage.partitions.answers import Appended, Slice
from penstock.transactions.ending import Ending
from penstock.transactions.transaction import Place
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
from penstock.wire.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.batch import HEADER_SIZE, iter_batches
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig, batch
from tests.storage.world import admitted

NONE = ErrorCode.NONE
UNSTABLE = "unstable"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(tmp_path / "store", offsets_topic_num_partitions=1)
    await made.topic("t", 3)
    yield made
    await made.close()


def partition_of(rig: Rig, place: Place) -> Partition:
    partition = rig.broker.ledger.partition(rig.broker.image.topics[place.topic].id, place.partition)
    assert partition is not None
    return partition


async def write(rig: Rig, place: Place, producer: int, epoch: int = 0, sequence: int = 0) -> int:
    """A batch of a transaction; its offset."""
    answer: asyncio.Future[Appended | ErrorCode] = asyncio.get_running_loop().create_future()
    data = batch(b"x", producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    rig.broker.ledger.append(partition_of(rig, place), admitted(data), answer.set_result)
    appended = await answer
    assert isinstance(appended, Appended), appended
    return appended.base_offset


def ending(
    producer: int, epoch: int = 0, *, commit: bool = True, coordinator: int = 0, version: int = 1
) -> Ending:
    return Ending(producer, epoch, commit, coordinator, version)


def stable(rig: Rig, places: Iterable[Place]) -> list[int]:
    return [partition_of(rig, place).last_stable_offset for place in places]


ALL = [Place("t", index) for index in range(3)]


async def test_a_transaction_ends_in_all_its_partitions_with_one_flush(rig: Rig) -> None:
    for place in ALL:
        await write(rig, place, 7)
    assert stable(rig, ALL) == [0, 0, 0]
    flusher = rig.broker.ledger._flusher
    assert flusher is not None
    before = flusher.flushes
    assert await write_markers(rig.broker, ending(7), ALL) == dict.fromkeys(ALL, NONE)
    assert flusher.flushes == before + 1
    assert stable(rig, ALL) == [2, 2, 2]
    assert partition_of(rig, ALL[0]).aborted_transactions(0, 10) == []


async def test_the_batch_is_as_kafka_writes_it(rig: Rig) -> None:
    place = ALL[0]
    await write(rig, place, 7, epoch=3)
    await write_markers(rig.broker, ending(7, 3, commit=False, coordinator=5), [place])
    found = rig.broker.ledger.read(partition_of(rig, place), 1, 1000, limit_offset=2)
    assert isinstance(found, Slice)
    data = memoryview(b"".join(found.buffers))
    ((_, header),) = iter_batches(data)
    assert (header.attributes, header.base_sequence, header.producer_id, header.producer_epoch) == (
        0x30,
        -1,
        7,
        3,
    )
    assert parse_marker(data[HEADER_SIZE:]) == Marker(MarkerKind.ABORT, 5)
    (aborted,) = partition_of(rig, place).aborted_transactions(0, 10)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (7, 0, 1)


async def test_a_marker_without_records_aborts_nothing(rig: Rig) -> None:
    codes = await write_markers(rig.broker, ending(7, commit=False), ALL[:1])
    assert codes == {ALL[0]: NONE}
    assert partition_of(rig, ALL[0]).aborted_transactions(0, 10) == []
    assert stable(rig, ALL[:1]) == [1]


async def test_each_partition_has_its_own_code(rig: Rig) -> None:
    await rig.propose(RegisterBroker(2, (Listener("PLAINTEXT", "127.0.0.1", 9093),), incarnation="other"))
    await rig.create("elsewhere", assignments=[[2]])
    await write(rig, ALL[0], 7, epoch=4)
    await write(rig, ALL[1], 7, epoch=3)
    await write_markers(rig.broker, ending(7, 3, coordinator=9), [ALL[1]])
    absent, beyond, foreign = Place("absent", 0), Place("t", 3), Place("elsewhere", 0)
    codes = await write_markers(
        rig.broker, ending(7, 3, coordinator=8), [ALL[0], ALL[1], ALL[2], absent, beyond, foreign]
    )
    assert codes == {
        ALL[0]: ErrorCode.INVALID_PRODUCER_EPOCH,
        ALL[1]: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ALL[2]: NONE,
        absent: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        beyond: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        foreign: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }


@pytest.mark.parametrize(("producer", "epoch"), [(-1, 0), (7, -1)])
async def test_a_marker_of_no_producer_is_not_written(rig: Rig, producer: int, epoch: int) -> None:
    codes = await write_markers(rig.broker, ending(producer, epoch), ALL[:1])
    assert codes == {ALL[0]: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert partition_of(rig, ALL[0]).next_offset == 0


async def test_with_version_2_a_marker_of_the_epoch_of_the_records_is_late(rig: Rig) -> None:
    (place, *_) = ALL
    await write(rig, place, 7, epoch=3)
    late = await write_markers(rig.broker, ending(7, 3, version=2), [place])
    assert late == {place: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert stable(rig, [place]) == [0]
    assert await write_markers(rig.broker, ending(7, 4, version=2), [place]) == {place: NONE}
    again = await write_markers(rig.broker, ending(7, 4, version=2), [place])
    assert again == {place: NONE}, "its coordinator did not hear the answer"
    assert stable(rig, [place]) == [3]
    await write(rig, place, 7, epoch=4)
    assert await write_markers(rig.broker, ending(7, 4, version=2), [place]) == {
        place: ErrorCode.INVALID_PRODUCER_EPOCH
    }
    assert stable(rig, [place]) == [3]


async def test_who_may_have_been_replaced_refuses_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await write(rig, ALL[0], 7, epoch=4)
    monkeypatch.setattr(type(rig.broker), "leads_surely", False)
    codes = await write_markers(rig.broker, ending(7, 3), ALL[:1])
    assert codes == {ALL[0]: ErrorCode.NOT_LEADER_OR_FOLLOWER}


# -- the request ------------------------------------------------------------------------------------------


def marker(producer: int, *places: Place, epoch: int = 0, commit: bool = True) -> WritableTxnMarker:
    topics = [
        WritableTxnMarkerTopic(name=place.topic, partition_indexes=[place.partition]) for place in places
    ]
    return WritableTxnMarker(
        producer_id=producer, producer_epoch=epoch, transaction_result=commit, topics=topics
    )


@pytest.mark.parametrize("version", [1, 2])
async def test_many_endings_in_one_request(rig: Rig, version: int) -> None:
    for place in ALL:
        await write(rig, place, 7)
    await write(rig, ALL[0], 8)
    message = WriteTxnMarkersRequest(
        markers=[marker(7, *ALL, Place("absent", 0)), marker(8, ALL[0], commit=False), marker(9)]
    )
    flusher = rig.broker.ledger._flusher
    assert flusher is not None
    before = flusher.flushes
    answer = await rig.ask(message, WriteTxnMarkersResponse, version)
    assert flusher.flushes == before + 1
    codes = [
        (one.producer_id, topic.name, [(p.partition_index, p.error_code) for p in topic.partitions])
        for one in answer.markers
        for topic in one.topics
    ]
    assert codes == [(7, "t", [(0, 0), (1, 0), (2, 0)]), (7, "absent", [(0, 3)]), (8, "t", [(0, 0)])]
    assert [one.producer_id for one in answer.markers] == [7, 8], "nothing was asked of the third"
    assert [t.producer_id for t in partition_of(rig, ALL[0]).aborted_transactions(0, 10)] == [8]


async def test_the_version_of_the_transaction_is_heeded(rig: Rig) -> None:
    await write(rig, ALL[0], 7, epoch=3)
    late = marker(7, ALL[0], epoch=3)
    late.transaction_version = 2
    answer = await rig.ask(WriteTxnMarkersRequest(markers=[late]), WriteTxnMarkersResponse, 2)
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    answer = await rig.ask(WriteTxnMarkersRequest(markers=[late]), WriteTxnMarkersResponse, 1)
    assert answer.markers[0].topics[0].partitions[0].error_code == NONE


# -- offsets ----------------------------------------------------------------------------------------------

OFFSETS = Place(OFFSETS_TOPIC, 0)


async def commit_in_transaction(rig: Rig, producer: int, offset: int) -> int:
    asked = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    message = TxnOffsetCommitRequest(
        transactional_id="id",
        group_id="g",
        producer_id=producer,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[asked])],
    )
    live = await rig.broker.services.groups.found("g")
    assert not isinstance(live, ErrorCode)
    answer = live.ask(GroupShard.commit_offsets_in_transaction, message, NOT_ASKED)
    if not isinstance(answer, TxnOffsetCommitResponse):
        answer = await answer  # type: ignore[misc]
    assert isinstance(answer, TxnOffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


async def fetched(rig: Rig) -> int | str:
    """The offset of the group, as a reader of stable offsets sees it."""
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    message = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)], require_stable=True
    )
    answer = await rig.ask(message, OffsetFetchResponse, 9)
    (found,) = answer.groups[0].topics[0].partitions
    return UNSTABLE if found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT else found.committed_offset


@pytest.fixture
async def offsets(rig: Rig) -> Rig:
    """A group has a coordinator, and offset 5 waits for the transaction of producer 7."""
    await rig.ask(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse, 4)
    assert await commit_in_transaction(rig, 7, 5) == NONE
    assert await fetched(rig) == UNSTABLE
    return rig


@pytest.mark.parametrize("commit", [True, False])
async def test_offsets_take_effect_with_the_durable_marker(offsets: Rig, commit: bool) -> None:
    codes = await write_markers(offsets.broker, ending(7, commit=commit), [OFFSETS])
    assert codes == {OFFSETS: NONE}
    assert await fetched(offsets) == (5 if commit else -1)
    assert stable(offsets, [OFFSETS]) == [2]


async def test_offsets_do_not_take_effect_with_a_marker_that_was_refused(offsets: Rig) -> None:
    codes = await write_markers(offsets.broker, ending(7, 0, coordinator=-2), [OFFSETS])
    assert codes == {OFFSETS: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
    assert await fetched(offsets) == UNSTABLE


async def test_offsets_take_effect_with_a_marker_that_is_durable_while_the_partition_is_handed_over(
    offsets: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way when the partition stopped to accept, and then the partition stayed here."""
    partition = partition_of(offsets, OFFSETS)
    publish = Partition.publish

    def closed_meanwhile(self: Partition, end_offset: int, stable_offset: int) -> None:
        if self is partition:
            self.closed = True
        publish(self, end_offset, stable_offset)

    monkeypatch.setattr(Partition, "publish", closed_meanwhile)
    assert await write_markers(offsets.broker, ending(7), [OFFSETS]) == {OFFSETS: NONE}
    offsets.broker.ledger.resume([(partition.topic_id, partition.index)])
    assert await fetched(offsets) == 5


async def test_offsets_take_effect_in_the_moment_in_which_the_marker_can_be_read(offsets: Rig) -> None:
    """A reader that sees the end of the transaction in the log also sees the offsets."""
    partition = partition_of(offsets, OFFSETS)
    live = offsets.broker.services.groups.loaded(partition)
    assert live is not None
    seen: list[tuple[bool, int | str]] = []

    def look() -> None:
        asked = OffsetFetchRequestGroup(
            group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        )
        (found,) = live.shard.fetch_offsets(asked, require_stable=True).topics[0].partitions
        seen.append((partition.last_stable_offset == 2, found.committed_offset))

    stop = partition.watch(look)
    look()
    await write_markers(offsets.broker, ending(7), [OFFSETS])
    stop()
    assert seen == [(False, -1), (True, 5)]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_marker_that_comes_while_the_shard_is_loaded_counts(
    offsets: Rig, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    groups = offsets.broker.services.groups
    live = groups.loaded(partition_of(offsets, OFFSETS))
    assert live is not None
    reached, go_on = asyncio.Event(), asyncio.Event()

    read = loading._read

    async def stopping(*arguments: Any) -> int:
        offset = await read(*arguments)
        if not reached.is_set():
            reached.set()
            await go_on.wait()
        return offset

    monkeypatch.setattr(loading, "_read", stopping)
    live._break()
    found = asyncio.ensure_future(groups.found("g"))
    await reached.wait()
    assert groups.loaded(partition_of(offsets, OFFSETS)) is None
    assert await write_markers(offsets.broker, ending(7, commit=commit), [OFFSETS]) == {OFFSETS: NONE}
    go_on.set()
    assert not isinstance(await found, ErrorCode)
    assert await fetched(offsets) == (5 if commit else -1)
