"""AddPartitionsToTxn 0-5: partitions become part of a transaction (KIP-98), or are asked for (KIP-890).

- Versions 0-3 come from clients and name one transaction. If one partition does not exist or the producer may
  not write to it, nothing is added: those get their code, and the others OPERATION_NOT_ATTEMPTED. Nobody may
  write to an internal topic. A fenced epoch is INVALID_PRODUCER_EPOCH in versions 0 and 1, PRODUCER_FENCED
  later.
- Versions 4 and 5 come from brokers and name many transactions. With `verify_only` nothing is added, and a
  partition that is not part of the transaction is TRANSACTION_ABORTABLE.
- The answer waits until what it says is durable. While the markers of the transaction before are written it
  is CONCURRENT_TRANSACTIONS; clients come again.
- The coordinator of the id decides: NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS for all partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.broker.rights import BE_A_BROKER, WRITE_TOPIC, WRITE_TRANSACTION
from penstock.metadata.image import INTERNAL_TOPICS
from penstock.transactions.transaction import BUMPS_WITH_EACH_END, Given, Place
from penstock.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.transactions.core import Codes
    from penstock.wire.exchange import Request

FROM_BROKERS_SINCE = 4
FENCED_SINCE = 2


def handle(
    broker: Broker, request: Request, message: AddPartitionsToTxnRequest, permit: Permit
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    version = request.api_version
    if version < FROM_BROKERS_SINCE:
        codes = _add_for_client(broker, message, permit)
        if isinstance(codes, Awaitable):
            return _answer_client_later(codes, message, version)
        return _to_client(codes, message, version)
    refusal = permit.refusal(BE_A_BROKER)
    if refusal is not None:
        return AddPartitionsToTxnResponse(error_code=refusal)
    return _add_for_broker(broker, message.transactions)


def named(broker: Broker, message: AddPartitionsToTxnRequest, version: int) -> Named:
    return _places(_topics(message))


# -- clients --------------------------------------------------------------------------------------------


def _add_for_client(
    broker: Broker, message: AddPartitionsToTxnRequest, permit: Permit
) -> Codes | Awaitable[Codes]:
    transactional_id = message.v3_and_below_transactional_id
    places = list(_places(message.v3_and_below_topics))
    refusal = permit.refusal(WRITE_TRANSACTION, transactional_id)
    if refusal is not None:
        return dict.fromkeys(places, refusal)
    faults = {place: _client_fault(broker, permit, place) for place in places}
    if any(faults.values()):
        return {place: code or ErrorCode.OPERATION_NOT_ATTEMPTED for place, code in faults.items()}
    given = Given(message.v3_and_below_producer_id, message.v3_and_below_producer_epoch)
    return broker.services.transactions.add_partitions(
        transactional_id, given, places, verify_only=False, client_version=0
    )


def _client_fault(broker: Broker, permit: Permit, place: Place) -> ErrorCode | None:
    if place.topic in INTERNAL_TOPICS:
        return WRITE_TOPIC.code
    return permit.refusal(WRITE_TOPIC, place.topic) or _fault(broker, place)


async def _answer_client_later(
    codes: Awaitable[Codes], message: AddPartitionsToTxnRequest, version: int
) -> AddPartitionsToTxnResponse:
    return _to_client(await codes, message, version)


def _to_client(codes: Codes, message: AddPartitionsToTxnRequest, version: int) -> AddPartitionsToTxnResponse:
    if version < FENCED_SINCE:
        fenced, past = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
        codes = {place: past if code is fenced else code for place, code in codes.items()}
    results = _results(message.v3_and_below_topics, codes)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


# -- brokers --------------------------------------------------------------------------------------------


async def _add_for_broker(
    broker: Broker, transactions: Iterable[AddPartitionsToTxnTransaction]
) -> AddPartitionsToTxnResponse:
    async def added(transaction: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        codes = _add(broker, transaction)
        results = _results(transaction.topics, await codes if isinstance(codes, Awaitable) else codes)
        return AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results)

    results = await asyncio.gather(*(added(transaction) for transaction in transactions))
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _add(broker: Broker, transaction: AddPartitionsToTxnTransaction) -> Codes | Awaitable[Codes]:
    places = list(_places(transaction.topics))
    faults = {place: _fault(broker, place) for place in places}
    if any(faults.values()):
        return {place: code or ErrorCode.OPERATION_NOT_ATTEMPTED for place, code in faults.items()}
    return broker.services.transactions.add_partitions(
        transaction.transactional_id,
        Given(transaction.producer_id, transaction.producer_epoch),
        places,
        verify_only=transaction.verify_only,
        client_version=BUMPS_WITH_EACH_END,
    )


# -- both -----------------------------------------------------------------------------------------------


def _fault(broker: Broker, place: Place) -> ErrorCode | None:
    topic = broker.image.topics.get(place.topic)
    known = topic is not None and 0 <= place.partition < len(topic.partitions)
    return None if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topics(message: AddPartitionsToTxnRequest) -> Iterator[AddPartitionsToTxnTopic]:
    yield from message.v3_and_below_topics
    for transaction in message.transactions:
        yield from transaction.topics


def _places(topics: Iterable[AddPartitionsToTxnTopic]) -> Iterator[Place]:
    return (Place(topic.name, partition) for topic in topics for partition in topic.partitions)


def _results(topics: Iterable[AddPartitionsToTxnTopic], codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {topic.name: [] for topic in topics}
    for place, code in codes.items():
        result = AddPartitionsToTxnPartitionResult(partition_index=place.partition, partition_error_code=code)
        by_topic[place.topic].append(result)
    return [
        AddPartitionsToTxnTopicResult(name=name, results_by_partition=results)
        for name, results in by_topic.items()
    ]


def refused(message: AddPartitionsToTxnRequest, code: ErrorCode) -> AddPartitionsToTxnResponse:
    """Either form: what the version does not have is empty."""
    return AddPartitionsToTxnResponse(
        error_code=code if message.transactions else ErrorCode.NONE,
        results_by_topic_v3_and_below=_results(
            message.v3_and_below_topics, dict.fromkeys(_places(message.v3_and_below_topics), code)
        ),
    )
