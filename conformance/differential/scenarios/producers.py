"""InitProducerId without transactions, DescribeProducers."""

from collections.abc import Iterator

from conformance.differential.scenario import Draw, Step, remember, scenario
from conformance.differential.scenarios.produce import idempotent
from conformance.differential.scenarios.topics import create, new_topic


@scenario("InitProducerId")
def init_plain(draw: Draw, version: int) -> Iterator[Step]:
    slot = f"producer {draw.fresh()}"
    learn = remember(ProducerId=slot)
    yield Step({"TransactionalId": None, "TransactionTimeoutMs": 60000}, learn=learn)
    yield Step({"TransactionalId": None, "TransactionTimeoutMs": 0}, note="timeout 0")
    yield Step({"TransactionalId": None, "TransactionTimeoutMs": -1}, note="timeout -1")
    if version >= 3:
        yield Step(
            {"TransactionalId": None, "TransactionTimeoutMs": 1, "ProducerId": 5, "ProducerEpoch": 3},
            note="has id",
        )
        yield Step(
            {"TransactionalId": None, "TransactionTimeoutMs": 1, "ProducerId": 5, "ProducerEpoch": -1},
            note="id only",
        )
        yield Step(
            {"TransactionalId": None, "TransactionTimeoutMs": 1, "ProducerId": -1, "ProducerEpoch": 4},
            note="epoch only",
        )


@scenario("InitProducerId")
def init_empty_transaction(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"TransactionalId": "", "TransactionTimeoutMs": 60000}, note="empty transactional id")


@scenario("DescribeProducers")
def describe_producers(draw: Draw, version: int) -> Iterator[Step]:
    name, slot = draw.fresh(), f"producer {draw.fresh('described')}"
    yield create(new_topic(name))
    learn = remember(ProducerId=slot, ProducerEpoch=f"{slot} epoch")
    yield Step(
        {"TransactionalId": None, "TransactionTimeoutMs": 1000}, api="InitProducerId", version=1, learn=learn
    )
    yield Step(idempotent(draw, name, 8, slot, 0, "").body, api="Produce", version=8)
    yield Step(idempotent(draw, name, 8, slot, 3, "").body, api="Produce", version=8)
    yield Step({"Topics": [{"Name": name, "PartitionIndexes": [0]}]})
    unknown = {"Name": draw.fresh("absent"), "PartitionIndexes": [0]}
    yield Step({"Topics": [{"Name": name, "PartitionIndexes": [0, 44, -1]}, unknown]})
    yield Step({"Topics": [{"Name": "bad name", "PartitionIndexes": [0]}]})
    yield Step({"Topics": [{"Name": name, "PartitionIndexes": [0, 0]}]}, note="repeated")
    yield Step({"Topics": []})
