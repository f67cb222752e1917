"""The state that every part of a shard of transactions shares: ids, their journal, timers and answers.

**State ahead of storage.** An id changes at once when its record is handed to the journal. So requests of one
producer that come together (ten partitions at ten leaders) do not wait for each other, and the first request
of the next transaction need not wait for the record that completes this one. Kafka answers them
CONCURRENT_TRANSACTIONS. Nobody is shown such a state: an answer is held back until all that it rests on is
durable, and a failed write puts back what was.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.shards.journal import Durable, Failed, Journal
from penstock.shards.shard import Effects, Now, Record, Ticket, error_after_append
from penstock.shards.timers import Timers
from penstock.transactions.ending import Ending
from penstock.transactions.records import to_key, to_value
from penstock.transactions.transaction import NO_EPOCH, NO_PRODUCER, Given, Place, State, Transaction
from penstock.wire.errors import ErrorCode

_BATCH_BYTES = 65_536
"""Records of many ids share one batch up to about this size: far below `max.message.bytes`, so that a large
record beside small ones does not make all of them fail."""

NOBODY = Given(NO_PRODUCER, NO_EPOCH)


class Told(NamedTuple):
    """What the sender of InitProducerId or EndTxn is told."""

    code: ErrorCode
    producer: Given = NOBODY


class Marking(NamedTuple):
    """An errand: the partitions of a transaction are to get its marker. `markers_written` tells which have
    it."""

    transactional_id: str
    ending: Ending
    places: frozenset[Place]


Codes = dict[Place, ErrorCode]
"""What is said of each partition."""


class NoProducerId(Exception):
    """No producer id is at hand; there will be soon."""


class Context:
    """The parts of a shard, and the event that it is working on."""

    __slots__ = ("_new_id", "answers", "errands", "journal", "known", "now", "on_open", "open", "timers")

    def __init__(self, new_producer_id: Callable[[], int | None]) -> None:
        self._new_id = new_producer_id
        self.known: dict[str, Transaction] = {}
        self.open: dict[str, None] = {}
        """The ids in state Ongoing, in the order in which they got there."""
        self.on_open: Callable[[], None] = nothing
        """Called when an id gets into state Ongoing."""
        self.journal: Journal[Transaction] = Journal(_BATCH_BYTES)
        self.timers = Timers()
        self.now = Now(0, 0)
        self.answers: list[tuple[Ticket, object]] = []
        self.errands: list[Marking] = []

    def write(
        self, transactional_id: str, transaction: Transaction | None, durable: Durable, failed: Failed
    ) -> None:
        """An id has another state from now on; None: it is forgotten."""
        self.journal.remember(transactional_id, lambda: self.known.get(transactional_id))
        self.set(transactional_id, transaction)
        self.journal.append([_record(transactional_id, transaction)], durable, failed)

    def takes(self, transactional_id: str, transaction: Transaction) -> bool:
        """Whether its record fits into a batch of the topic."""
        return self.journal.takes([_record(transactional_id, transaction)])

    def set(self, transactional_id: str, transaction: Transaction | None) -> None:
        if transaction is None:
            self.known.pop(transactional_id, None)
        else:
            self.known[transactional_id] = transaction
        if transaction is None or transaction.state is not State.ONGOING:
            self.open.pop(transactional_id, None)
        elif transactional_id not in self.open:
            self.open[transactional_id] = None
            self.on_open()

    def new_producer_id(self) -> int:
        taken = self._new_id()
        if taken is None:
            raise NoProducerId
        return taken

    def answer(self, ticket: Ticket, answer: object) -> None:
        self.answers.append((ticket, answer))

    def answer_unwritten(
        self, transactional_id: str, ticket: Ticket, answer: object, refused: Callable[[ErrorCode], object]
    ) -> None:
        """An answer without a write: at once, or when the writes that it rests on are durable."""
        if self.journal.changes(transactional_id):
            self.journal.then(*self.to_answer(ticket, answer, refused))
        else:
            self.answer(ticket, answer)

    def to_answer(
        self, ticket: Ticket, answer: object, refused: Callable[[ErrorCode], object]
    ) -> tuple[Durable, Failed]:
        return (
            lambda: self.answer(ticket, answer),
            lambda code: self.answer(ticket, refused(error_after_append(code))),
        )

    def effects(self) -> Effects:
        errands, self.errands = self.errands, []
        batch = self.journal.take()
        return Effects(self.taken_answers(), batch, self.timers.next_deadline(), errands)

    def taken_answers(self) -> list[tuple[Ticket, object]]:
        answers, self.answers = self.answers, []
        return answers


def _record(transactional_id: str, transaction: Transaction | None) -> Record:
    return Record(to_key(transactional_id), None if transaction is None else to_value(transaction))


def nothing() -> None:
    """Nobody waits for this write."""


def ignore(_code: ErrorCode) -> None:
    """Nobody is told that this write failed. What it would have said is said again later."""
