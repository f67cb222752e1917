"""Produce with transactions: who may begin one in a partition, what clients of each version are told, and
that neither markers nor other batches come in between unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.peers.peers import PeerError
from penstock.broker.transactions import asking
from penstock.broker.transactions.markers import write_markers
from penstock.metadata.commands import RegisterBroker
from penstock.metadata.image import TRANSACTIONS_TOPIC, Listener
from penstock.storage.ledger.ledger import Partition
from penstock.testing.waiting import eventually
from penstock.transactions.ending import Ending
from penstock.transactions.transaction import Given, Place
from penstock.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from penstock.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.codec import decode
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.headers import parse_response_header
from tests.broker.coordinators import Asked, FakeCoordinator
from tests.broker.rig import Rig, batch
from tests.broker.test_produce import produce, stored

HERE = Place("t", 0)
ID = "mine"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(tmp_path / "store")
    await made.topic("t", 3)
    yield made
    await made.close()


@pytest.fixture
async def coordinator(rig: Rig) -> FakeCoordinator:
    return await FakeCoordinator.on(rig)


def records(sequence: int, *, producer: int = 7, epoch: int = 0, value: bytes = b"x") -> bytearray:
    return batch(
        value, transactional=True, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )


def partition_of(rig: Rig, index: int = 0) -> Partition:
    found = rig.broker.ledger.partition(rig.broker.image.topics["t"].id, index)
    assert found is not None
    return found


async def write(rig: Rig, sequence: int, version: int = 11, **options: Any) -> ErrorCode:
    answer = await produce(rig, "t", records(sequence, **options), version, transactional_id=ID)
    return ErrorCode(answer.error_code)


async def end(rig: Rig, *, epoch: int = 0, commit: bool = True, version: int = 1, index: int = 0) -> None:
    place = Place("t", index)
    codes = await write_markers(rig.broker, Ending(7, epoch, commit, 0, version), [place])
    assert codes == {place: ErrorCode.NONE}


# -- the question -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
async def test_the_first_batch_asks_and_the_others_do_not(
    rig: Rig, coordinator: FakeCoordinator, version: int
) -> None:
    for sequence in range(3):
        assert await write(rig, sequence, version) is ErrorCode.NONE
    adds = version >= 12
    assert coordinator.asked == [Asked(ID, Given(7, 0), (HERE,), not adds, 2 if adds else 1)]
    assert partition_of(rig).last_stable_offset == 0
    await end(rig, epoch=1 if adds else 0, version=2 if adds else 1)
    assert await write(rig, 0 if adds else 3, version, epoch=1 if adds else 0) is ErrorCode.NONE
    assert len(coordinator.asked) == 2
    assert [r.offset for r in stored(rig, "t")] == [0, 1, 2, 3, 4]


async def test_one_question_for_all_partitions_of_a_request(rig: Rig, coordinator: FakeCoordinator) -> None:
    assert await write(rig, 0) is ErrorCode.NONE
    coordinator.codes[Place("t", 2)] = ErrorCode.TRANSACTION_ABORTABLE
    partitions = [PartitionProduceData(index=at, records=records(0 if at else 1)) for at in range(3)]
    message = ProduceRequest(
        transactional_id=ID,
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="t", partition_data=partitions)],
    )
    answer = await rig.ask(message, ProduceResponse, 11)
    codes = {one.index: one.error_code for one in answer.responses[0].partition_responses}
    assert codes == {0: 0, 1: 0, 2: ErrorCode.TRANSACTION_ABORTABLE}
    assert [one.places for one in coordinator.asked] == [(HERE,), (Place("t", 1), Place("t", 2))]


async def test_of_several_producers_the_whole_request_is_refused(
    rig: Rig, coordinator: FakeCoordinator
) -> None:
    partitions = [PartitionProduceData(index=at, records=records(0, producer=7 + at)) for at in range(2)]
    message = ProduceRequest(
        transactional_id=ID,
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="t", partition_data=partitions)],
    )
    answer = await rig.ask(message, ProduceResponse, 11)
    codes = [one.error_code for one in answer.responses[0].partition_responses]
    assert codes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert coordinator.asked == []


ABORTABLE, BUSY, FENCED = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.PRODUCER_FENCED,
)


@pytest.mark.parametrize(
    ("said", "old", "eleven", "new"),
    [
        (ABORTABLE, 48, 120, 120),
        (FENCED, 47, 47, 47),
        (BUSY, 19, 19, 51),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 49, 49, 49),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 19, 19, 19),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 19, 19, 19),
        (ErrorCode.NOT_COORDINATOR, 19, 19, 19),
        (ErrorCode.INVALID_TXN_STATE, 48, 48, 48),
    ],
)
async def test_what_clients_of_each_version_are_told(
    rig: Rig, coordinator: FakeCoordinator, said: ErrorCode, old: int, eleven: int, new: int
) -> None:
    coordinator.code = said
    told = {version: (await write(rig, 0, version)).value for version in range(3, 14)}
    expected = {version: new if version >= 12 else eleven if version == 11 else old for version in told}
    assert told == expected
    assert partition_of(rig).next_offset == 0
    assert len(partition_of(rig).guards) == 0
    coordinator.code = ErrorCode.NONE
    assert await write(rig, 0) is ErrorCode.NONE


async def test_a_message_says_why(rig: Rig, coordinator: FakeCoordinator) -> None:
    coordinator.code = ErrorCode.NOT_COORDINATOR
    answer = await produce(rig, "t", records(0), 11, transactional_id=ID)
    assert answer.error_message == (
        "Unable to verify the partition has been added to the transaction. Underlying error: NOT_COORDINATOR"
    )
    assert (answer.base_offset, answer.log_start_offset) == (-1, -1)


async def test_without_a_coordinator_the_client_tries_again(rig: Rig) -> None:
    assert await write(rig, 0) is ErrorCode.NOT_ENOUGH_REPLICAS


async def test_the_markers_before_are_waited_for_a_moment(rig: Rig, coordinator: FakeCoordinator) -> None:
    """The client was told of its commit before its markers were written."""
    coordinator.code = BUSY
    waiting = asyncio.ensure_future(write(rig, 0, 12))
    await eventually(lambda: len(coordinator.asked) > 2)
    coordinator.code = ErrorCode.NONE
    assert await waiting is ErrorCode.NONE


async def test_a_failing_coordinator_is_an_unknown_error(
    rig: Rig, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(coordinator, "add_partitions", failing)
    assert await write(rig, 0) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(partition_of(rig).guards) == 0


@pytest.mark.parametrize(("version", "asks"), [(11, False), (12, True)])
async def test_verification_can_be_left_out_but_adding_cannot(
    tmp_path: Path, version: int, asks: bool
) -> None:
    rig = await Rig.start(tmp_path / "store", transaction_partition_verification_enable=False)
    await rig.topic("t")
    coordinator = await FakeCoordinator.on(rig)
    coordinator.code = ABORTABLE
    assert await write(rig, 0, version) is (ABORTABLE if asks else ErrorCode.NONE)
    assert bool(coordinator.asked) == asks
    await rig.close()


# -- the guard --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [11, 12])
async def test_a_marker_that_overtakes_the_first_batch_makes_it_fail(
    rig: Rig, coordinator: FakeCoordinator, version: int
) -> None:
    answer = coordinator.hold()
    waiting = asyncio.ensure_future(write(rig, 0, version))
    await eventually(lambda: bool(coordinator.asked))
    await end(rig, commit=False)
    answer.set_result(None)
    assert await waiting is ErrorCode.INVALID_TXN_STATE
    assert partition_of(rig).last_stable_offset == partition_of(rig).high_watermark == 1


async def test_the_answer_about_an_old_transaction_does_not_begin_the_next(
    rig: Rig, coordinator: FakeCoordinator
) -> None:
    old = coordinator.hold()
    first = asyncio.ensure_future(write(rig, 0))
    await eventually(lambda: len(coordinator.asked) == 1)
    await end(rig, commit=False)
    new = coordinator.hold()
    second = asyncio.ensure_future(write(rig, 0))
    await eventually(lambda: len(coordinator.asked) == 2)
    old.set_result(None)
    assert await first is ErrorCode.INVALID_TXN_STATE
    assert partition_of(rig).next_offset == 1
    new.set_result(None)
    assert await second is ErrorCode.NONE


async def test_a_late_batch_after_the_marker_asks_again(rig: Rig, coordinator: FakeCoordinator) -> None:
    assert await write(rig, 0) is ErrorCode.NONE
    await end(rig)
    coordinator.code = ABORTABLE
    assert await write(rig, 1) is ABORTABLE
    assert partition_of(rig).last_stable_offset == partition_of(rig).high_watermark == 2


async def test_an_old_epoch_is_refused_without_a_question(rig: Rig, coordinator: FakeCoordinator) -> None:
    assert await write(rig, 0, epoch=3) is ErrorCode.NONE
    assert await write(rig, 1, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(coordinator.asked) == 1


async def test_a_plain_batch_inside_of_a_transaction_is_refused(
    rig: Rig, coordinator: FakeCoordinator
) -> None:
    assert await write(rig, 0) is ErrorCode.NONE
    plain = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=1)
    answer = await produce(rig, "t", plain, 11, transactional_id=ID)
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE


async def test_a_repeated_batch_is_answered_with_its_offset(rig: Rig, coordinator: FakeCoordinator) -> None:
    assert [await write(rig, sequence) for sequence in range(2)] == [0, 0]
    again = await produce(rig, "t", records(0), 11, transactional_id=ID)
    assert (again.error_code, again.base_offset) == (0, 0)


# -- order ------------------------------------------------------------------------------------------------


def send(rig: Rig, sequence: int, version: int = 11) -> Reply:
    message = ProduceRequest(
        transactional_id=ID,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(records=records(sequence))])
        ],
    )
    reply = rig.send(message, version)
    assert isinstance(reply, Reply)
    return reply


async def finished(rig: Rig, reply: Reply, version: int = 11) -> PartitionProduceResponse:
    data = memoryview(b"".join(await rig.finished(reply) or []))
    answer, _end = decode(ProduceResponse, version, data, parse_response_header(0, version, data)[1])
    return answer.responses[0].partition_responses[0]


async def test_five_in_flight_keep_their_order_while_the_first_waits(
    rig: Rig, coordinator: FakeCoordinator
) -> None:
    answer = coordinator.hold()
    replies = [send(rig, sequence) for sequence in range(5)]
    assert not any(reply.exclusive for reply in replies), "other partitions need not wait"
    await asyncio.sleep(0)
    answer.set_result(None)
    found = [await finished(rig, reply) for reply in replies]
    assert [(one.error_code, one.base_offset) for one in found] == [(0, at) for at in range(5)]
    assert len(coordinator.asked) == 1


async def test_those_behind_the_first_fail_with_it(rig: Rig, coordinator: FakeCoordinator) -> None:
    answer = coordinator.hold()
    coordinator.code = ABORTABLE
    replies = [send(rig, sequence) for sequence in range(5)]
    answer.set_result(None)
    assert [(await finished(rig, reply)).error_code for reply in replies] == [ABORTABLE] * 5
    assert partition_of(rig).next_offset == 0


async def test_a_later_batch_does_not_take_the_place_of_one_that_is_sent_again(
    rig: Rig, coordinator: FakeCoordinator
) -> None:
    coordinator.code = ErrorCode.NOT_COORDINATOR
    assert await write(rig, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
    coordinator.code = ErrorCode.NONE
    assert await write(rig, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [await write(rig, sequence) for sequence in range(2)] == [0, 0]


# -- the fast way -----------------------------------------------------------------------------------------


async def test_an_open_transaction_goes_the_fast_way_and_no_other(
    rig: Rig, coordinator: FakeCoordinator
) -> None:
    general = []
    for sequence in range(4):
        assert await write(rig, sequence) is ErrorCode.NONE
        general.append(rig.general)
    assert general == [1, 1, 1, 1]
    await end(rig)
    coordinator.code = ABORTABLE
    assert await write(rig, 4) is ABORTABLE
    coordinator.code = ErrorCode.NONE
    assert await write(rig, 4) is ErrorCode.NONE
    assert rig.general == 3
    assert await write(rig, 0, epoch=1) is ErrorCode.NONE, "another epoch is another transaction"
    assert rig.general == 4
    assert len(coordinator.asked) == 4


async def test_a_batch_on_the_fast_way_does_not_slip_past_a_marker(
    rig: Rig, coordinator: FakeCoordinator
) -> None:
    for sequence in range(2):
        assert await write(rig, sequence) is ErrorCode.NONE
    ending = asyncio.ensure_future(write_markers(rig.broker, Ending(7, 0, False, 0, 1), [HERE]))
    await asyncio.sleep(0)  # It is on its way into the log.
    general = rig.general
    late = send(rig, 2)
    assert rig.general == general
    assert await ending == {HERE: ErrorCode.NONE}
    assert (await finished(rig, late)).error_code == ErrorCode.INVALID_TXN_STATE
    assert partition_of(rig).last_stable_offset == partition_of(rig).high_watermark


async def test_without_a_transactional_id_the_fast_way_takes_no_transaction(
    rig: Rig, coordinator: FakeCoordinator
) -> None:
    assert await write(rig, 0) is ErrorCode.NONE
    plain = batch(b"x", producer_id=8, producer_epoch=0, base_sequence=0)
    assert (await produce(rig, "t", plain, 11)).error_code == 0
    answer = await produce(rig, "t", records(1), 11)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


# -- a coordinator elsewhere ------------------------------------------------------------------------------


class Elsewhere:
    """Broker 2, as this one asks it."""

    def __init__(self) -> None:
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.code = ErrorCode.NONE
        self.whole = ErrorCode.NONE
        self.gone = False

    async def ask(self, broker: int, request: Any, response: Any, *, seconds: float) -> Any:
        assert broker == 2
        self.requests.append(request)
        if self.gone:
            raise PeerError("gone")
        return AddPartitionsToTxnResponse(
            error_code=self.whole,
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=self.code
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in transaction.topics
                    ],
                )
                for transaction in request.transactions
            ],
        )


@pytest.fixture
async def elsewhere(rig: Rig) -> Elsewhere:
    await rig.propose(RegisterBroker(2, (Listener("PLAINTEXT", "127.0.0.1", 9093),), incarnation="other"))
    await rig.create(TRANSACTIONS_TOPIC, assignments=[[2]])
    made = Elsewhere()
    rig.broker.services.__dict__["peers"] = made
    return made


@pytest.mark.parametrize("version", [11, 12])
async def test_another_broker_is_asked(rig: Rig, elsewhere: Elsewhere, version: int) -> None:
    assert await write(rig, 0, version) is ErrorCode.NONE
    ((transaction,),) = [request.transactions for request in elsewhere.requests]
    assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == (ID, 7, 0)
    assert transaction.verify_only == (version < 12)
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("t", [0])]


async def test_questions_of_one_turn_go_into_one_request(rig: Rig, elsewhere: Elsewhere) -> None:
    names = ["a", "b", "a"]
    answers = await asyncio.gather(
        *(
            produce(rig, "t", records(0, producer=7 + at), 11, transactional_id=name)
            for at, name in enumerate(names)
        )
    )
    assert [one.error_code for one in answers] == [0, 0, 0]
    asked = [[one.transactional_id for one in request.transactions] for request in elsewhere.requests]
    assert sorted(map(sorted, asked)) == [["a"], ["a", "b"]], "an answer tells them apart by their ids"


async def test_a_broker_that_does_not_answer(rig: Rig, elsewhere: Elsewhere) -> None:
    elsewhere.gone = True
    assert await write(rig, 0) is ErrorCode.NOT_ENOUGH_REPLICAS
    elsewhere.gone = False
    elsewhere.whole = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await write(rig, 0) is ErrorCode.INVALID_TXN_STATE
    elsewhere.whole = ErrorCode.NONE
    assert await write(rig, 0) is ErrorCode.NONE


async def test_a_stopping_broker_leaves_nobody_without_an_answer(
    rig: Rig, coordinator: FakeCoordinator
) -> None:
    coordinator.hold()
    reply = send(rig, 0)
    await asyncio.sleep(0)
    await rig.broker.tasks.stop()
    assert (await finished(rig, reply)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert asking.ANSWER_SECONDS < 30, "less than a client waits"
