"""The answer to a Produce that went the general way: batches go into the log, those of transactions after the
coordinator let them in, and the answer is complete when the last one is durable or refused."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.produce.answers import Asked, Key, Outcome, Target, encoded, is_refused
from penstock.broker.produce.checks import Demands, Refused
from penstock.broker.produce.route import seconds_for
from penstock.log.guards import Guard, GuardedBatch
from penstock.transactions.admission import denied_produce, manner_of_produce
from penstock.transactions.transaction import Given
from penstock.wire.batch import NO_PRODUCER_ID, TRANSACTIONAL
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.context import Broker
    from penstock.broker.transactions.asking import Applicant
    from penstock.storage.ledger.ledger import Partition
    from penstock.storage.partitions.answers import Appended
    from penstock.wire.api.produce import ProduceRequest
    from penstock.wire.exchange import Request

_MAGIC_AT = 16
_ATTRIBUTES_LOW_AT = 22
_PRODUCER = Struct(">qhi")
_PRODUCER_AT = 43


class Accepted(NamedTuple):
    """A batch that is to be appended. `plain`: another one like it needs only the checks of a route."""

    partition: Partition
    batch: memoryview | bytearray
    demands: Demands
    plain: bool


def is_transactional(records: memoryview | bytearray | None) -> bool:
    return (
        records is not None
        and len(records) > _ATTRIBUTES_LOW_AT
        and records[_MAGIC_AT] == 2
        and records[_ATTRIBUTES_LOW_AT] & TRANSACTIONAL != 0
    )


def producer_of(records: memoryview | bytearray | None) -> tuple[Given, int] | None:
    """Who sent a transactional batch, and its first sequence. None for other records."""
    if records is None or len(records) < _PRODUCER_AT + _PRODUCER.size or not is_transactional(records):
        return None
    producer_id, epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_AT)
    return None if producer_id == NO_PRODUCER_ID else (Given(producer_id, epoch), sequence)


class Pending(Reply):
    """The answer to a request that went the general way, complete when its last batch is durable."""

    __slots__ = (
        "_acks",
        "_asked",
        "_broker",
        "_seconds",
        "_targets",
        "_transactional_id",
        "left",
        "outcomes",
    )

    def __init__(
        self, broker: Broker, request: Request, message: ProduceRequest, targets: dict[Key, Target]
    ) -> None:
        Reply.__init__(self)
        self.exclusive = False
        self._broker = broker
        self._asked = Asked(request.api_version, request.correlation_id, request.session.listener)
        self._acks = message.acks
        self._seconds = seconds_for(message.acks, message.timeout_ms)
        self._targets = targets
        self._transactional_id = message.transactional_id
        self.outcomes: dict[Key, Outcome] = {}
        self.left = 0

    def appended(self, key: Key) -> Callable[[Appended | ErrorCode], None]:
        """What the ledger is to call when the batch of one partition is durable or refused."""

        def done(result: Appended | ErrorCode) -> None:
            self._concluded(key, result)

        return done

    def append_all(self, accepted: Mapping[Key, Accepted]) -> None:
        """Hand what was accepted to the ledger, and wait for it. The batches are ours."""
        self.left = len(accepted)
        if not accepted:
            self.finish()
        beginning: dict[Key, tuple[Given, int]] = {}
        for key, one in accepted.items():
            if self._transactional_id is not None:
                sender = producer_of(one.batch)
                if sender is not None and not one.partition.in_transaction(*sender[0]):
                    beginning[key] = sender
                    continue
            self._broker.ledger.append(one.partition, one.batch, self.appended(key), self._seconds)
        if beginning:
            self._begin(accepted, beginning)

    def refuse_all(self, code: ErrorCode) -> None:
        self.outcomes = {key: Refused(code) for key in self._targets}
        self.finish()

    def finish(self) -> Pending:
        if self._acks != 0:
            self.complete(encoded(self._broker, self._asked, self._targets, self.outcomes))
        elif any(is_refused(one) for one in self.outcomes.values()):
            self.close()
        else:
            self.complete(None)
        return self

    def _concluded(self, key: Key, outcome: Outcome) -> None:
        if key in self.outcomes:
            return  # It was in doubt when its time was over, and that was told.
        self.outcomes[key] = outcome
        self.left -= 1
        if self.left == 0:
            self.finish()

    # -- transactions ---------------------------------------------------------------------------------

    def _begin(self, accepted: Mapping[Key, Accepted], beginning: Mapping[Key, tuple[Given, int]]) -> None:
        """Ask for the batches that may be the first of their transaction. They have one producer, since a
        request with several is refused."""
        assert self._transactional_id is not None
        given = next(iter(beginning.values()))[0]
        applicants: list[Applicant] = []
        for key, (_given, sequence) in beginning.items():
            one = accepted[key]
            if self._is_over(one.partition, given):
                self._concluded(key, Refused(ErrorCode.INVALID_PRODUCER_EPOCH))
            else:
                applicants.append((one.partition, sequence, self._admitted(key, one)))
        manner = manner_of_produce(self._asked.version)
        self._broker.services.admission.admit(self._transactional_id, given, manner, applicants)

    def _is_over(self, partition: Partition, given: Given) -> bool:
        """Whether the partition knows a later epoch, for sure: then the coordinator need not be asked."""
        entry = partition.producer_entries.get(given.producer_id)
        return entry is not None and given.epoch < entry.epoch and self._broker.leads_surely

    def _admitted(self, key: Key, one: Accepted) -> Callable[[Guard | ErrorCode], None]:
        def admitted(answer: Guard | ErrorCode) -> None:
            if isinstance(answer, Guard):
                guarded = GuardedBatch.of(one.batch, answer)
                self._broker.ledger.append(one.partition, guarded, self.appended(key), self._seconds)
            else:
                code, message = denied_produce(answer, manner_of_produce(self._asked.version))
                self._concluded(key, Refused(code, message=message))

        return admitted
