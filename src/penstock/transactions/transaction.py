"""One transactional id: what is known of it, and what each request makes of that. Values in, values out.

A `Transaction` is what the log holds of an id (but for `last_epoch`, which only memory holds). Each function
below takes the present one and a request, in the order of Kafka's checks. It gives either the next one, which
becomes true when its record is durable, or `Answer`: a code to give at once, with nothing to write. Whoever
comes while markers are being written, with the right to it or not, is told when they are, or
CONCURRENT_TRANSACTIONS: Kafka has the completion pending from before it answers EndTxn.

    Empty, Complete*            InitProducerId             Empty, with the next epoch
    Empty, Complete*, Ongoing   partitions are added       Ongoing
    Ongoing                     EndTxn                     PrepareCommit or PrepareAbort
    Empty, Complete*            EndTxn abort, version 5    PrepareAbort, without partitions
    Ongoing                     time-out, InitProducerId   PrepareAbort, with the next epoch
    Prepare*                    all markers are written    Complete*

Transaction versions: in 1 epochs move when a producer is initialised or fenced; in 2 (KIP-890) they move with
each end of a transaction, so that nothing late can hit the next one. The client chooses, by the version of
EndTxn.

At the last epoch but one the producer gets a new id and epoch 0. The markers of the transaction that ended
then carry the old id and the very last epoch, which no client is ever given.
"""

from collections.abc import Callable, Collection
from enum import IntEnum
from typing import NamedTuple

import msgspec

from penstock.wire.errors import ErrorCode

NO_PRODUCER = -1
NO_EPOCH = -1
NO_TIME = -1
EPOCH_MAX = 32767
BUMPS_WITH_EACH_END = 2
"""The transaction version in which each end of a transaction takes the next epoch."""


class State(IntEnum):
    """With the numbers that records have."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


_PREPARED = frozenset((State.PREPARE_COMMIT, State.PREPARE_ABORT))
_COMPLETE = frozenset((State.COMPLETE_COMMIT, State.COMPLETE_ABORT))
NAMES = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.PREPARE_COMMIT: "PrepareCommit",
    State.PREPARE_ABORT: "PrepareAbort",
    State.COMPLETE_COMMIT: "CompleteCommit",
    State.COMPLETE_ABORT: "CompleteAbort",
}
"""As DescribeTransactions and ListTransactions call them."""


class Place(NamedTuple):
    """A partition of a topic, by name: the log of transactions names topics as Kafka's does."""

    topic: str
    partition: int


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    previous_producer_id: int = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER
    epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    """The epoch before, if whoever has it may ask for the present one again."""
    timeout_ms: int
    state: State = State.EMPTY
    places: frozenset[Place] = frozenset()
    start_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    client_version: int = 0

    @property
    def is_prepared(self) -> bool:
        """Whether its end is decided, and its markers are still to be written."""
        return self.state in _PREPARED

    @property
    def is_idle(self) -> bool:
        return self.state is State.EMPTY or self.state in _COMPLETE

    @property
    def epoch_is_used_up(self) -> bool:
        """Whether the next epoch would be the one that no client is given."""
        return self.epoch >= EPOCH_MAX - 1

    def with_changes(self, **changes: object) -> "Transaction":
        return msgspec.structs.replace(self, **changes)


class Answer(NamedTuple):
    """An answer without a write."""

    code: ErrorCode


OK = Answer(ErrorCode.NONE)
BUSY = Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
FENCED = Answer(ErrorCode.PRODUCER_FENCED)
UNKNOWN_PRODUCER = Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
WRONG_STATE = Answer(ErrorCode.INVALID_TXN_STATE)


class Given(NamedTuple):
    """The producer id and epoch that a request names."""

    producer_id: int
    epoch: int


class Fence(NamedTuple):
    """An open transaction stands in the way: abort it, with this next state, and let the caller try again."""

    next: Transaction


# -- InitProducerId -------------------------------------------------------------------------------------


def created(new_producer_id: int, timeout_ms: int) -> Transaction:
    """What is known of an id that was never seen. It becomes true with the first epoch."""
    return Transaction(producer_id=new_producer_id, timeout_ms=timeout_ms)


def initialised(
    present: Transaction,
    given: Given | None,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Transaction | Fence | Answer:
    """A producer begins with this id, or goes on (`given`) after an error."""
    if present.is_prepared:
        # Whoever that is: the producer may have been told of the id that comes with completion.
        return BUSY
    if given is not None and not _may_go_on(present, given):
        return FENCED
    if present.state is State.ONGOING:
        return Fence(fenced(present, now_ms, new_producer_id))
    if present.epoch_is_used_up and (given is None or given.epoch == present.epoch):
        return _begun(
            present,
            timeout_ms,
            now_ms,
            producer_id=new_producer_id(),
            previous_producer_id=present.producer_id,
            epoch=0,
            last_epoch=NO_EPOCH if given is None else present.epoch,
        )
    if given is None:
        return _begun(present, timeout_ms, now_ms, epoch=present.epoch + 1, last_epoch=NO_EPOCH)
    if present.epoch in (NO_EPOCH, given.epoch):
        return _begun(present, timeout_ms, now_ms, epoch=present.epoch + 1, last_epoch=present.epoch)
    if given.epoch == present.last_epoch:
        return _begun(present, timeout_ms, now_ms)  # It did not hear the answer.
    return FENCED


def _may_go_on(present: Transaction, given: Given) -> bool:
    return (
        present.epoch == NO_EPOCH
        or given.producer_id == present.producer_id
        or (given.producer_id == present.previous_producer_id and given.epoch >= EPOCH_MAX - 1)
    )


def _begun(present: Transaction, timeout_ms: int, now_ms: int, **changes: int) -> Transaction:
    return present.with_changes(
        state=State.EMPTY,
        places=frozenset(),
        start_ms=NO_TIME,
        updated_ms=now_ms,
        timeout_ms=timeout_ms,
        next_producer_id=NO_PRODUCER,
        **changes,
    )


# -- what belongs to it ---------------------------------------------------------------------------------


def with_places(
    present: Transaction, given: Given, places: Collection[Place], now_ms: int, client_version: int
) -> Transaction | Answer:
    """Partitions become part of the transaction, which begins with the first of them."""
    if present.is_prepared:
        return BUSY
    refusal = _refusal(present, given)
    if refusal is not None:
        return refusal
    if present.state is State.ONGOING:
        if present.places.issuperset(places):
            return OK
        return present.with_changes(
            places=present.places.union(places), updated_ms=now_ms, client_version=client_version
        )
    return present.with_changes(
        state=State.ONGOING,
        places=frozenset(places),
        start_ms=now_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def verified(present: Transaction, given: Given, places: Collection[Place]) -> dict[Place, ErrorCode]:
    """Which of these are part of the transaction. Also asked while a record is on its way: what is appended
    to a partition meanwhile is judged there once more."""
    refusal = _refusal(present, given)
    if refusal is not None:
        return dict.fromkeys(places, refusal.code)
    return {
        place: ErrorCode.NONE if place in present.places else ErrorCode.TRANSACTION_ABORTABLE
        for place in places
    }


def _refusal(present: Transaction, given: Given) -> Answer | None:
    if present.is_prepared and given == answered(present):
        return BUSY  # The next transaction, which may have another producer id already.
    if given.producer_id != present.producer_id:
        return UNKNOWN_PRODUCER
    if given.epoch != present.epoch:
        return FENCED
    return BUSY if present.is_prepared else None


# -- its end --------------------------------------------------------------------------------------------


def ended(present: Transaction, given: Given, *, commit: bool, now_ms: int) -> Transaction | Answer:
    """EndTxn up to version 4: the epoch stays."""
    if given.producer_id != present.producer_id:
        return UNKNOWN_PRODUCER
    if given.epoch != present.epoch:
        return FENCED
    if present.is_prepared:
        return BUSY  # Whatever it wants: how the transaction ended is told when it is complete.
    if present.state is State.ONGOING:
        # Whatever its client said before: the marker has the epoch of the data.
        return _prepared(present, commit=commit, now_ms=now_ms, client_version=0)
    if present.state is State.EMPTY or _is_commit(present) != commit:
        return WRONG_STATE
    return OK


def ended_with_bump(
    present: Transaction, given: Given, *, commit: bool, now_ms: int, new_producer_id: Callable[[], int]
) -> Transaction | Answer:
    """EndTxn from version 5: the next transaction has the next epoch, which the answer tells.

    A request whose epoch is the one before the present may be a retry, of which the answer was lost. Whoever
    comes while markers are being written is judged when they are.
    """
    if present.is_prepared:
        return BUSY
    rotated = (
        given.producer_id == present.previous_producer_id
        and given.epoch == EPOCH_MAX - 1
        and present.epoch == 0
    )
    if given.producer_id != present.producer_id and not rotated:
        return UNKNOWN_PRODUCER
    retried = rotated or given.epoch + 1 == present.epoch
    if given.epoch != present.epoch and not retried:
        return FENCED
    if present.state is State.ONGOING or present.state is State.EMPTY:
        if retried:
            return FENCED
    elif retried:
        if present.client_version < BUMPS_WITH_EACH_END:
            # That end took no epoch, so another one's request did it: this client was shut out before.
            return FENCED
        return OK if _is_commit(present) == commit else WRONG_STATE
    if commit and present.state is not State.ONGOING:
        return WRONG_STATE
    next_id = new_producer_id() if present.epoch_is_used_up else NO_PRODUCER
    return _prepared(
        present,
        commit=commit,
        now_ms=now_ms,
        epoch=present.epoch + 1,
        last_epoch=present.epoch,
        next_producer_id=next_id,
        client_version=BUMPS_WITH_EACH_END,
    )


def fenced(present: Transaction, now_ms: int, new_producer_id: Callable[[], int]) -> Transaction:
    """The open transaction is aborted, and its producer shut out, by the next epoch. The producer may ask for
    that epoch and go on, unless another one began meanwhile (KIP-588)."""
    return _prepared(
        present,
        commit=False,
        now_ms=now_ms,
        epoch=present.epoch + 1,
        last_epoch=present.epoch,
        next_producer_id=new_producer_id() if present.epoch_is_used_up else NO_PRODUCER,
    )


def _prepared(present: Transaction, *, commit: bool, now_ms: int, **changes: int) -> Transaction:
    return present.with_changes(
        state=State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
        start_ms=present.start_ms if present.state is State.ONGOING else now_ms,
        places=present.places if present.state is State.ONGOING else frozenset(),
        updated_ms=now_ms,
        **changes,
    )


def completed(present: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    assert present.is_prepared
    state = State.COMPLETE_COMMIT if _is_commit(present) else State.COMPLETE_ABORT
    done = present.with_changes(state=state, places=frozenset(), updated_ms=now_ms)
    if present.next_producer_id == NO_PRODUCER:
        return done
    return done.with_changes(
        producer_id=present.next_producer_id,
        previous_producer_id=present.producer_id,
        next_producer_id=NO_PRODUCER,
        epoch=0,
    )


def answered(present: Transaction) -> Given:
    """The producer id and epoch that a client is told of, when it ended a transaction or asks again."""
    if present.next_producer_id != NO_PRODUCER:
        return Given(present.next_producer_id, 0)
    return Given(present.producer_id, present.epoch)


def _is_commit(present: Transaction) -> bool:
    return present.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)


# -- time -----------------------------------------------------------------------------------------------


def is_overdue(present: Transaction, now_ms: int) -> bool:
    return present.state is State.ONGOING and present.start_ms + present.timeout_ms < now_ms


def is_expired(present: Transaction, now_ms: int, expiration_ms: int) -> bool:
    return present.is_idle and present.updated_ms + expiration_ms <= now_ms
