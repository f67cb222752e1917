"""Questions about transactions, as `penstock transactions` and `penstock doctor` ask them, and the marker
that ends one that hangs. Any cluster that serves Kafka's APIs for it (KIP-664) answers them.

A transaction hangs in a partition if the partition holds records of it and its coordinator does not know
that: no marker will ever come, and readers of committed records wait for ever. `open_transactions` asks in
this order:

    1. the leaders, which producers have a transaction open
    2. the coordinators, which partitions the transactions of these producers have
    3. the leaders again

A coordinator forgets a partition only after its marker was written. So a transaction that is open at 1 and,
from the same offset on, at 3, and whose partition the coordinator does not name at 2, hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from penstock.admin.offsets import ONE_COORDINATOR, Place
from penstock.client import AnswerError, Client, ClientError, Connection
from penstock.wire.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from penstock.wire.api.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.wire.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.errors import ErrorCode

OF_A_TRANSACTION = 1
"""The kind of key that FindCoordinator is asked for."""
PLACES_AT_ONCE = 500
"""Partitions in one question: an answer is as long as their producers are many."""
NO_TRANSACTION = -1
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Listed(NamedTuple):
    id: str
    coordinator: int
    producer_id: int
    state: str


class Producer(NamedTuple):
    """A producer that a partition remembers."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int
    """Where its open transaction begins; NO_TRANSACTION: it has none."""

    @property
    def place(self) -> Place:
        return self.topic, self.partition


def list_transactions(
    client: Client,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> list[Listed]:
    """The transactional ids of the cluster: each broker lists those that it coordinates."""
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=duration_ms,
        transactional_id_pattern=pattern,
    )
    newest = client.any().version_of(request)
    if newest < (2 if pattern is not None else 1 if duration_ms >= 0 else 0):
        raise ClientError("The brokers are too old to list transactions by that.")

    def ask(node: int) -> ListTransactionsResponse:
        answer = client.broker(node).ask(request, ListTransactionsResponse)
        if answer.error_code:
            raise AnswerError(answer.error_code, f"The question for transactions to broker {node}")
        return answer

    found: dict[str, Listed] = {}
    for broker in client.metadata([]).brokers:
        node = broker.node_id
        answer = client.retry(partial(ask, node))
        if answer.unknown_state_filters:
            raise ClientError(f"No transaction has a state {', '.join(answer.unknown_state_filters)}.")
        # An id that moves to another coordinator meanwhile may be listed by both.
        for one in answer.transaction_states:
            listed = Listed(one.transactional_id, node, one.producer_id, one.transaction_state)
            found[listed.id] = listed
    return sorted(found.values())


def coordinator_id(client: Client, transaction: str) -> int:
    """The broker that coordinates a transactional id now."""

    def look() -> int:
        request = FindCoordinatorRequest(key=transaction, key_type=OF_A_TRANSACTION)
        answer = client.any().ask(request, FindCoordinatorResponse, newest=ONE_COORDINATOR)
        if answer.error_code:
            what = f"The question for the coordinator of {transaction!r}"
            raise AnswerError(answer.error_code, what, answer.error_message)
        client.metadata([])
        return answer.node_id

    return client.retry(look)


def describe_transaction(client: Client, transaction: str) -> TransactionState | None:
    """The state of a transactional id; None if there is no such id."""

    def ask() -> TransactionState | None:
        broker = client.broker(coordinator_id(client, transaction))
        request = DescribeTransactionsRequest(transactional_ids=[transaction])
        (found,) = broker.ask(request, DescribeTransactionsResponse).transaction_states
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        if found.error_code:
            raise AnswerError(found.error_code, f"The question for transaction {transaction!r}")
        return found

    return client.retry(ask)


def places_of(state: TransactionState) -> set[Place]:
    return {(topic.topic, partition) for topic in state.topics for partition in topic.partitions}


# -- producers of partitions -------------------------------------------------------------------------------


def producers(client: Client, places: Iterable[Place]) -> list[Producer]:
    """The producers that these partitions remember, as their leaders tell. Partitions that are gone have
    none."""
    found: list[Producer] = []
    left = set(places)

    def ask() -> None:
        while left:
            leader, some = _led_together(client, left)
            answer = leader.ask(_question(some), DescribeProducersResponse)
            for topic in answer.topics:
                for one in topic.partitions:
                    if one.error_code and one.error_code not in _GONE:
                        what = f"The question for producers of partition {one.partition_index} of"
                        raise AnswerError(one.error_code, f"{what} {topic.name!r}", one.error_message)
                    left.discard((topic.name, one.partition_index))
                    found.extend(
                        Producer(
                            topic.name,
                            one.partition_index,
                            state.producer_id,
                            state.producer_epoch,
                            state.coordinator_epoch,
                            state.last_sequence,
                            state.last_timestamp,
                            state.current_txn_start_offset,
                        )
                        for state in one.active_producers
                    )

    client.retry(ask)
    return sorted(found)


def _led_together(client: Client, left: Iterable[Place]) -> tuple[Connection, list[Place]]:
    """Some of the partitions that are left, all led by one broker."""
    by_leader: dict[int, list[Place]] = {}
    for place in sorted(left):
        mine = by_leader.setdefault(client.leader_id(*place), [])
        mine.append(place)
        if len(mine) == PLACES_AT_ONCE:
            break
    leader, some = max(by_leader.items(), key=lambda item: len(item[1]))
    return client.broker(leader), some


def _question(places: Sequence[Place]) -> DescribeProducersRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    return DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=some) for name, some in by_topic.items()]
    )


# -- hanging transactions ----------------------------------------------------------------------------------


class OpenTransaction(NamedTuple):
    """A transaction that is open in one partition."""

    producer: Producer
    state: TransactionState | None
    """What its coordinator knows of it; None: it hangs."""


def open_transactions(
    client: Client, places: Iterable[Place], idle_since_ms: int | None = None
) -> list[OpenTransaction]:
    """The transactions that are open in these partitions; with `idle_since_ms`, only those whose last record
    is older."""
    suspects = [
        one
        for one in producers(client, places)
        if one.start_offset != NO_TRANSACTION
        and (idle_since_ms is None or one.last_timestamp_ms < idle_since_ms)
    ]
    found = list(map(OpenTransaction, suspects, coordinated(client, suspects)))
    unknown = {one.producer.place for one in found if one.state is None}
    still = {
        (one.place, one.producer_id, one.start_offset)
        for one in (producers(client, unknown) if unknown else ())
    }
    return [
        one
        for one in found
        if one.state is not None
        or (one.producer.place, one.producer.producer_id, one.producer.start_offset) in still
    ]


def coordinated(client: Client, suspects: Sequence[Producer]) -> list[TransactionState | None]:
    """For each open transaction, what its coordinator knows of it; None if no coordinator knows that its
    partition is in it."""
    if not suspects:
        return []
    ids: Mapping[int, str] = {
        one.producer_id: one.id
        for one in list_transactions(client, producer_ids=sorted({one.producer_id for one in suspects}))
    }
    states: dict[str, TransactionState | None] = {}
    for transaction in set(ids.values()):
        states[transaction] = describe_transaction(client, transaction)
    answers: list[TransactionState | None] = []
    for one in suspects:
        state = states.get(ids.get(one.producer_id, ""))
        known = state is not None and state.producer_id == one.producer_id and one.place in places_of(state)
        answers.append(state if known else None)
    return answers


def abort(client: Client, producer: Producer) -> None:
    """Have the leader of the partition write the marker that ends this producer's transaction there."""
    topic, partition = producer.place
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )

    def ask() -> None:
        request = WriteTxnMarkersRequest(markers=[marker])
        answer = client.leader(topic, partition).ask(request, WriteTxnMarkersResponse)
        code = answer.markers[0].topics[0].partitions[0].error_code
        if code:
            what = f"The abort of producer {producer.producer_id} in partition {partition} of {topic!r}"
            raise AnswerError(code, what)

    client.retry(ask)


def open_transaction(
    found: list[Producer], start_offset: int | None, producer_id: int | None, place: Place
) -> Producer:
    for one in found:
        if (
            one.start_offset != NO_TRANSACTION
            and start_offset in (None, one.start_offset)
            and producer_id in (None, one.producer_id)
        ):
            return one
    begun = f" that begins at offset {start_offset}" if start_offset is not None else ""
    of = f" of producer {producer_id}" if producer_id is not None else ""
    raise ClientError(f"No transaction{of}{begun} is open in partition {place[1]} of {place[0]!r}.")


def require_hanging(client: Client, one: Producer) -> None:
    (known,) = coordinated(client, [one])
    if known is not None:
        raise ClientError(
            f"This transaction does not hang: it is that of {known.transactional_id!r}, which is"
            f" {known.transaction_state} and ends it, at the latest after {known.transaction_timeout_ms} ms."
            " By force it is aborted in this partition alone."
        )


def places_of_topic(client: Client, topic: str | None, partition: int | None) -> list[Place]:
    if topic is None:
        return [
            (found.name, one.partition_index)
            for found in client.metadata().topics
            if found.name and not found.error_code
            for one in found.partitions
        ]
    if partition is None:
        return [(topic, one) for one in client.partitions(topic)]
    return [existing_place(client, topic, partition)]


def existing_place(client: Client, topic: str, partition: int) -> Place:
    if partition not in client.partitions(topic):
        raise ClientError(f"Topic {topic!r} has no partition {partition}.")
    return topic, partition
