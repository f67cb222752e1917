"""The coordinator of transactions on one broker: requests as they come in, markers in the partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.metadata.commands import DeleteTopic
from penstock.metadata.image import OFFSETS_TOPIC, TOPIC_CONFIG, TRANSACTIONS_TOPIC
from penstock.metadata.refusal import Refusal
from penstock.testing.waiting import eventually
from penstock.transactions.transaction import State
from penstock.wire.api.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.api.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig
from tests.transactions.producer import Producer


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(
        tmp_path / "store", offsets_topic_num_partitions=2, transaction_state_log_num_partitions=3
    )
    await made.upgrade()
    yield made
    await made.close()


def at(rig: Rig, name: str) -> Producer:
    return Producer(rig.broker, rig.ask, name)


def end_of(rig: Rig, topic: str, partition: int = 0) -> int:
    found = rig.broker.ledger.partition(rig.broker.image.topics[topic].id, partition)
    assert found is not None
    return found.high_watermark


async def test_a_commit_puts_a_marker_into_each_partition(rig: Rig) -> None:
    await rig.topic("t", 3)
    producer = at(rig, "x")
    assert await producer.begin() == ErrorCode.NONE
    assert await producer.add("t", 0, 2) == [ErrorCode.NONE, ErrorCode.NONE]
    assert await producer.end() == ErrorCode.NONE
    await producer.ended(State.COMPLETE_COMMIT)
    assert [end_of(rig, "t", partition) for partition in range(3)] == [1, 0, 1]


async def test_the_second_version_counts_epochs(rig: Rig) -> None:
    await rig.topic("t")
    producer = at(rig, "x")
    await producer.begin()
    for epoch in range(3):
        assert producer.epoch == epoch
        assert await producer.add("t", 0) == [ErrorCode.NONE]
        assert await producer.end(commit=epoch != 1, version=5) == ErrorCode.NONE
        await producer.ended(State.COMPLETE_ABORT if epoch == 1 else State.COMPLETE_COMMIT)
    assert end_of(rig, "t") == 3


async def test_one_bad_partition_keeps_the_others_out(rig: Rig) -> None:
    await rig.topic("t", 2)
    producer = at(rig, "x")
    await producer.begin()
    absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.add("t", 1, 2) == [ErrorCode.OPERATION_NOT_ATTEMPTED, absent]
    assert await producer.add(TRANSACTIONS_TOPIC, 0) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert await producer.state() is State.EMPTY


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
async def test_a_fenced_epoch_has_the_code_of_the_version(rig: Rig, version: int, code: ErrorCode) -> None:
    await rig.topic("t")
    producer = at(rig, "x")
    await producer.begin()
    zombie = at(rig, "x")
    await zombie.begin()
    zombie.epoch -= 1
    assert await zombie.add("t", 0, version=version) == [code]
    assert await zombie.end(version=version) == code
    offsets = AddOffsetsToTxnRequest(
        transactional_id="x", producer_id=zombie.id, producer_epoch=zombie.epoch, group_id="g"
    )
    assert (await rig.ask(offsets, AddOffsetsToTxnResponse, version)).error_code == code


async def test_who_asks_again_does_not_overtake_itself(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that got no answer asks again on another connection. Its first request is not the last."""
    await at(rig, "other").begin()
    first, second, another = at(rig, "x"), at(rig, "x"), at(rig, "y")
    ids = rig.broker.services.producer_ids
    filled, stuck = ids.filled, asyncio.Event()

    async def late() -> Refusal | None:
        monkeypatch.setattr(ids, "filled", filled)
        await stuck.wait()
        return await filled()

    monkeypatch.setattr(ids, "filled", late)
    beginning = asyncio.create_task(first.begin())
    await eventually(lambda: ids.filled == filled)
    again = asyncio.create_task(second.begin())
    assert await another.begin() == ErrorCode.NONE
    stuck.set()
    assert [await beginning, await again] == [ErrorCode.NONE] * 2
    assert (first.epoch, second.epoch) == (0, 1)
    assert not rig.broker.services.transactions.beginnings


async def test_the_offsets_of_a_group_join(rig: Rig) -> None:
    await rig.ask(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse, 4)
    producer = at(rig, "x")
    await producer.begin()
    offsets = AddOffsetsToTxnRequest(
        transactional_id="x", producer_id=producer.id, producer_epoch=producer.epoch, group_id="g"
    )
    assert (await rig.ask(offsets, AddOffsetsToTxnResponse, 4)).error_code == ErrorCode.NONE
    described = await rig.ask(
        DescribeTransactionsRequest(transactional_ids=["x", "y", ""]), DescribeTransactionsResponse, 0
    )
    known, unknown, empty = described.transaction_states
    assert known.transaction_state == "Ongoing"
    assert [(topic.topic, topic.partitions) for topic in known.topics] == [("__consumer_offsets", [1])]
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    assert await producer.end() == ErrorCode.NONE
    await producer.ended(State.COMPLETE_COMMIT)


async def test_brokers_ask_for_many_transactions_at_once(rig: Rig) -> None:
    await rig.topic("t", 2)
    producers = [at(rig, name) for name in ("x", "y")]
    for producer in producers:
        await producer.begin()
    await producers[0].add("t", 0)

    def asked(verify_only: bool) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=producer.name,
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    verify_only=verify_only,
                    topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
                )
                for producer in producers
            ]
        )

    async def answers(verify_only: bool) -> dict[str, list[int]]:
        answer = await rig.ask(asked(verify_only), AddPartitionsToTxnResponse, 5)
        return {
            result.transactional_id: [
                one.partition_error_code
                for topic in result.topic_results
                for one in topic.results_by_partition
            ]
            for result in answer.results_by_transaction
        }

    missing = ErrorCode.TRANSACTION_ABORTABLE
    assert await answers(verify_only=True) == {"x": [ErrorCode.NONE, missing], "y": [missing, missing]}
    assert await answers(verify_only=False) == {"x": [0, 0], "y": [0, 0]}
    assert await answers(verify_only=True) == {"x": [0, 0], "y": [0, 0]}


async def test_a_topic_that_is_gone_holds_nobody_up(rig: Rig) -> None:
    topic = await rig.topic("t", 2)
    await rig.topic("u")
    producer = at(rig, "x")
    await producer.begin()
    await producer.add("t", 0, 1)
    await producer.add("u", 0)
    await rig.propose(DeleteTopic(topic.id))
    assert await producer.end() == ErrorCode.NONE
    await producer.ended(State.COMPLETE_COMMIT)
    assert end_of(rig, "u") == 1


async def test_an_overdue_transaction_is_aborted(tmp_path: Path) -> None:
    rig = await Rig.start(
        tmp_path / "store",
        transaction_state_log_num_partitions=1,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=20,
    )
    await rig.upgrade()
    await rig.topic("t")
    producer = at(rig, "x")
    await producer.begin()
    await producer.add("t", 0)
    rig.clock.ahead_ms += 61_000
    await producer.ended(State.COMPLETE_ABORT)
    assert end_of(rig, "t") == 1
    assert await producer.end() == ErrorCode.PRODUCER_FENCED
    await rig.close()


async def test_what_was_decided_is_carried_out_by_the_next_coordinator(rig: Rig) -> None:
    await rig.topic("t", 2)
    producer = at(rig, "x")
    await producer.begin()
    await producer.add("t", 0, 1)
    services = rig.broker.services
    coordinator = services.transactions
    sent: list[object] = []
    coordinator._send = lambda live, marking: sent.append(marking)
    assert await producer.end() == ErrorCode.NONE
    assert await producer.state() is State.PREPARE_COMMIT
    assert len(sent) == 1
    assert await producer.add("t", 0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    await coordinator.stop()
    del services.__dict__["transactions"]
    await at(rig, "x").ended(State.COMPLETE_COMMIT)
    assert [end_of(rig, "t", partition) for partition in range(2)] == [1, 1]
    assert await producer.end() == ErrorCode.NONE


async def test_many_producers_at_once(rig: Rig) -> None:
    await rig.topic("t", 4)

    async def run(name: str) -> None:
        producer = at(rig, name)
        await producer.begin()
        for round_ in range(3):
            if round_:
                await producer.ended(State.COMPLETE_ABORT if round_ == 2 else State.COMPLETE_COMMIT)
            assert await producer.add("t", *range(4)) == [ErrorCode.NONE] * 4
            assert await producer.end(commit=round_ % 2 == 0, version=5) == ErrorCode.NONE

    await asyncio.gather(*(run(f"p{number}") for number in range(20)))
    await eventually(lambda: end_of(rig, "t", 3) == 60, "all markers are written")
    listed = await rig.ask(
        ListTransactionsRequest(state_filters=["CompleteCommit", "Odd"], transactional_id_pattern="p1?[0-4]"),
        ListTransactionsResponse,
        2,
    )
    assert listed.unknown_state_filters == ["Odd"]
    names = sorted(one.transactional_id for one in listed.transaction_states)
    assert names == sorted(f"p{number}" for number in (0, 1, 2, 3, 4, 10, 11, 12, 13, 14))


async def test_a_bad_pattern_is_refused(rig: Rig) -> None:
    await at(rig, "x").begin()
    answer = await rig.ask(
        ListTransactionsRequest(transactional_id_pattern="(x"), ListTransactionsResponse, 2
    )
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_below_its_level_a_cluster_names_no_coordinator(tmp_path: Path) -> None:
    rig = await Rig.start(tmp_path / "store")
    answer = await rig.ask(
        FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]), FindCoordinatorResponse, 4
    )
    (one,) = answer.coordinators
    assert one.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "penstock cluster upgrade" in (one.error_message or "")
    assert TRANSACTIONS_TOPIC not in rig.broker.image.topics
    # Nor does it serve ids if somebody created the topic.
    await rig.topic(TRANSACTIONS_TOPIC)
    assert await at(rig, "x").begin() == ErrorCode.NOT_COORDINATOR
    await rig.upgrade()
    assert await at(rig, "x").begin() == ErrorCode.NONE
    await rig.close()


async def test_small_segments_do_not_keep_coordinators_away(tmp_path: Path) -> None:
    """Smaller ones than a topic may have can be asked for. The topics have the smallest that there are."""
    rig = await Rig.start(
        tmp_path / "store", offsets_topic_segment_bytes=8000, transaction_state_log_segment_bytes=1
    )
    await rig.upgrade()
    assert await at(rig, "x").begin() == ErrorCode.NONE
    asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    (one,) = (await rig.ask(asked, FindCoordinatorResponse, 4)).coordinators
    assert one.error_code == ErrorCode.NONE
    for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        assert rig.broker.image.config(TOPIC_CONFIG, name)["segment.bytes"] == "1048576"
    await rig.close()
