"""Asks the coordinator of a transaction whether records of it may get into partitions that are led here.

The first batch of a producer's epoch in a partition needs an answer (`log.guards` says why). Batches that
follow while the answer is awaited wait behind the first and share it, so a producer's batches keep their
order. (Kafka asks for each.) When the coordinator has allowed it, batches of this epoch need no further
question, until a marker ends the transaction in the partition.

A coordinator on this broker is called. For others the questions of one turn of the loop go into one request:
AddPartitionsToTxn from version 4 on.

From transaction version 2 on, the question adds the partition. The markers of the producer's transaction
before may still be on their way: then the coordinator is asked again after a moment, for a short time,
because for the client it would cost more to send the records again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from penstock.broker.peers.peers import PeerError
from penstock.log.guards import NOT_ASKED, Guard
from penstock.metadata.image import TRANSACTIONS_TOPIC
from penstock.shards.partitioner import partition_of
from penstock.transactions.admission import Manner
from penstock.transactions.transaction import Given, Place
from penstock.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.storage.ledger.ledger import Partition

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""How long another broker is waited for. A client that is told to try again loses little."""
PAUSE_FIRST_SECONDS = 0.001
"""Markers take about as long as one write to the store. So the first pause is short, and each is twice the
one before, up to `add.partitions.to.txn.retry.backoff.ms`."""

Codes = dict[Place, ErrorCode]
Admitted = Callable[["Guard | ErrorCode"], None]
"""Called once: with the guard that lets the batch in, or with the code of the coordinator."""


Applicant: TypeAlias = "tuple[Partition, int, Admitted]"
"""A batch that may be the first of its transaction: where it goes, its first sequence, and whom to tell."""


class _Question(NamedTuple):
    transactional_id: str
    given: Given
    places: tuple[Place, ...]
    adds: bool
    answer: asyncio.Future[Codes]


class Coordinating(Protocol):
    """The coordinator on this broker."""

    def add_partitions(
        self,
        transactional_id: str,
        given: Given,
        places: Collection[Place],
        *,
        verify_only: bool,
        client_version: int,
    ) -> Codes | Awaitable[Codes]: ...


class Admission:
    """A service."""

    def __init__(self, broker: Broker, coordinator: Callable[[], Coordinating]) -> None:
        """`coordinator`: the one on this broker, built when it is first needed."""
        self._broker = broker
        self._coordinator = coordinator
        self._waiting: dict[Guard, list[Admitted]] = {}
        """Batches that wait for an answer, by the guard of their partition and producer, in order."""
        self._letters: dict[int, list[_Question]] = {}
        """By broker: what it will be asked at the end of this turn of the loop."""

    def admit(
        self, transactional_id: str, given: Given, manner: Manner, applicants: Iterable[Applicant]
    ) -> None:
        """Let these batches of one producer in, or not. Each is told, now or later; those of one partition in
        the order in which they came."""
        asked: dict[Place, tuple[Partition, Guard]] = {}
        for partition, sequence, admitted in applicants:
            guard = self._guard(partition, given, manner)
            if guard is None:
                guard = partition.guards.begin(*given, sequence, begins_epoch=manner.adds)
                self._waiting[guard] = [admitted]
                asked[Place(partition.topic, partition.index)] = partition, guard
            elif guard in self._waiting:
                self._waiting[guard].append(admitted)
            else:
                admitted(guard)
        if asked:
            self._ask(transactional_id, given, manner, asked)

    def _guard(self, partition: Partition, given: Given, manner: Manner) -> Guard | None:
        """The guard that a batch waits behind or gets in with; None: somebody must be asked."""
        if not manner.adds and not self._broker.settings.transaction_partition_verification_enable:
            return NOT_ASKED
        return partition.guards.of(*given)

    # -- the question ---------------------------------------------------------------------------------

    def _ask(
        self,
        transactional_id: str,
        given: Given,
        manner: Manner,
        asked: dict[Place, tuple[Partition, Guard]],
    ) -> None:
        try:
            codes = self._codes(transactional_id, given, tuple(asked), manner)
        except Exception:
            log.exception("a coordinator failed transactional_id=%s", transactional_id)
            codes = dict.fromkeys(asked, ErrorCode.UNKNOWN_SERVER_ERROR)
        if isinstance(codes, dict) and not (manner.adds and _is_busy(codes)):
            self._answered(given, asked, codes)
        else:
            self._broker.tasks.spawn(self._ask_on(transactional_id, given, manner, asked, codes))

    async def _ask_on(
        self,
        transactional_id: str,
        given: Given,
        manner: Manner,
        asked: dict[Place, tuple[Partition, Guard]],
        answer: Codes | Awaitable[Codes],
    ) -> None:
        """Wait for the answer, and ask again for as long as the markers before are on their way."""
        settings, clock = self._broker.settings, self._broker.clock
        until = clock.monotonic() + settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        pause = PAUSE_FIRST_SECONDS
        codes = dict.fromkeys(asked, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        try:
            while True:
                codes = answer if isinstance(answer, dict) else await answer
                if not (manner.adds and _is_busy(codes)) or clock.monotonic() + pause > until:
                    break
                await asyncio.sleep(pause)
                pause = min(pause * 2, settings.add_partitions_to_txn_retry_backoff_ms / 1000)
                answer = self._codes(transactional_id, given, tuple(asked), manner)
        except Exception:
            log.exception("a coordinator failed transactional_id=%s", transactional_id)
            codes = dict.fromkeys(asked, ErrorCode.UNKNOWN_SERVER_ERROR)
        finally:
            # Also when the broker stops: nobody is left without an answer.
            self._answered(given, asked, codes)

    def _answered(
        self, given: Given, asked: Mapping[Place, tuple[Partition, Guard]], codes: Mapping[Place, ErrorCode]
    ) -> None:
        for place, (partition, guard) in asked.items():
            code = codes.get(place, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code is ErrorCode.NONE:
                guard.allowed = True
            else:
                partition.guards.fail(given.producer_id, guard)
            for admitted in self._waiting.pop(guard):
                admitted(guard if code is ErrorCode.NONE else code)

    def _codes(
        self, transactional_id: str, given: Given, places: Collection[Place], manner: Manner
    ) -> Codes | Awaitable[Codes]:
        broker = self._broker
        topic = broker.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return dict.fromkeys(places, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
        if leader == broker.broker_id:
            return self._coordinator().add_partitions(
                transactional_id,
                given,
                places,
                verify_only=not manner.adds,
                client_version=manner.client_version,
            )
        return self._other(leader, transactional_id, given, tuple(places), manner.adds)

    # -- other brokers --------------------------------------------------------------------------------

    def _other(
        self, leader: int, transactional_id: str, given: Given, places: tuple[Place, ...], adds: bool
    ) -> Awaitable[Codes]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Codes] = loop.create_future()
        letter = self._letters.get(leader)
        if letter is None:
            letter = self._letters[leader] = []
            loop.call_soon(self._send, leader)
        letter.append(_Question(transactional_id, given, places, adds, answer))
        return answer

    def _send(self, leader: int) -> None:
        """Ask a broker all that is to be asked. An answer names transactions by their ids, so a request has
        each id once."""
        questions = self._letters.pop(leader)
        while questions:
            letter = {question.transactional_id: question for question in reversed(questions)}
            questions = [one for one in questions if letter[one.transactional_id] is not one]
            self._broker.tasks.spawn(self._exchange(leader, letter))

    async def _exchange(self, leader: int, letter: Mapping[str, _Question]) -> None:
        code = ErrorCode.NETWORK_EXCEPTION
        found: dict[str, Codes] = {}
        try:
            peers = self._broker.services.peers
            request = AddPartitionsToTxnRequest(transactions=[_asking(one) for one in letter.values()])
            answer = await peers.ask(leader, request, AddPartitionsToTxnResponse, seconds=ANSWER_SECONDS)
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.NONE:
                found = _found(answer)
                code = ErrorCode.UNKNOWN_SERVER_ERROR  # For what an answer leaves out.
        except PeerError as error:
            log.info("a coordinator could not be asked broker=%d: %s", leader, error)
        except Exception:
            log.exception("a coordinator could not be asked broker=%d", leader)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        finally:
            for name, question in letter.items():
                codes = found.get(name, {})
                if not question.answer.done():
                    question.answer.set_result({place: codes.get(place, code) for place in question.places})


def _is_busy(codes: Mapping[Place, ErrorCode]) -> bool:
    return ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()


def _asking(question: _Question) -> AddPartitionsToTxnTransaction:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in question.places:
        by_topic.setdefault(topic, []).append(partition)
    return AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.given.producer_id,
        producer_epoch=question.given.epoch,
        verify_only=not question.adds,
        topics=[AddPartitionsToTxnTopic(name=name, partitions=found) for name, found in by_topic.items()],
    )


def _found(answer: AddPartitionsToTxnResponse) -> dict[str, Codes]:
    return {
        transaction.transactional_id: {
            Place(topic.name, one.partition_index): ErrorCode(one.partition_error_code)
            for topic in transaction.topic_results
            for one in topic.results_by_partition
        }
        for transaction in answer.results_by_transaction
    }
