"""One partition of `__transaction_state`: all transactional ids in it, and all that can happen to them.

Each method is an event, as `shards/shard.py` says. `transaction.py` decides what a request makes of an id;
this module writes that down, answers when it is durable, and has the markers of a decided transaction sent.

**State ahead of storage.** An id changes at once when its record is handed to the journal. So requests of one
producer that come together (ten partitions at ten leaders) do not wait for each other, and the first request
of the next transaction need not wait for the record that completes this one. Kafka answers them
CONCURRENT_TRANSACTIONS. Nobody is shown such a state: an answer is held back until all that it rests on is
durable, and a failed write puts back what was. Markers are sent when the decision is durable, never before.

**The life of an end.** Prepare* is written, and answered when it is durable. Its markers are an errand. The
shard is told of each partition that has its marker; after the last one it writes Complete*. An end that
concerns no partition is complete at once. After a load every Prepare* has its markers sent again.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

from penstock.shards.journal import Durable, Failed, Journal
from penstock.shards.shard import Effects, Now, Record, Ticket, error_after_append
from penstock.shards.timers import Timers
from penstock.transactions.ending import Ending
from penstock.transactions.parking import Parking
from penstock.transactions.records import read_record, to_key, to_value
from penstock.transactions.transaction import (
    BUSY,
    NO_EPOCH,
    NO_PRODUCER,
    Answer,
    Fence,
    Given,
    Place,
    State,
    Transaction,
    answered,
    completed,
    created,
    ended,
    ended_with_bump,
    fenced,
    initialised,
    is_expired,
    is_overdue,
    verified,
    with_places,
)
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode

_BATCH_BYTES = 65_536
"""Records of many ids share one batch up to about this size: far below `max.message.bytes`, so that a large
record beside small ones does not make all of them fail."""
_EXPIRY_SLICE = 200
"""Ids looked at in one go when they are checked for expiry; then others get their turn."""
_EXPIRY_PAUSE_MS = 5
_COMPLETE_AGAIN_MS = 100
"""After this long a completion is written again that could not be written."""

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


class Timing(NamedTuple):
    """The settings that a shard obeys."""

    overdue_check_ms: int
    """How often transactions are looked at that are open for longer than their time-out."""
    expiry_check_ms: int
    expiration_ms: int
    """How long an id may be idle before it is forgotten."""


class NoProducerId(Exception):
    """No producer id is at hand; there will be soon."""


Codes = dict[Place, ErrorCode]


class TransactionShard:
    __slots__ = (
        "_answers",
        "_errands",
        "_journal",
        "_known",
        "_new_id",
        "_now",
        "_open",
        "_parking",
        "_timers",
        "_timing",
        "_to_mark",
        "coordinator_epoch",
    )

    def __init__(
        self, coordinator_epoch: int, timing: Timing, new_producer_id: Callable[[], int | None]
    ) -> None:
        """`coordinator_epoch`: the leader epoch of the partition. `new_producer_id`: one that nobody has, or
        None if none is at hand."""
        self.coordinator_epoch = coordinator_epoch
        self._timing = timing
        self._new_id = new_producer_id
        self._known: dict[str, Transaction] = {}
        self._open: dict[str, None] = {}
        """The ids in state Ongoing, in the order in which they got there."""
        self._to_mark: dict[str, set[Place]] = {}
        """By id whose end is decided and durable: the partitions that are not known to have its marker."""
        self._journal: Journal[Transaction] = Journal(_BATCH_BYTES)
        self._timers = Timers()
        self._parking = Parking(self._timers)
        self._now = Now(0, 0)
        self._answers: list[tuple[Ticket, object]] = []
        self._errands: list[Marking] = []

    # -- load ----------------------------------------------------------------------------------------

    def load(self, key: Buffer, value: Buffer | None, producer_id: int = NO_PRODUCER) -> None:
        """One record of the log."""
        found = read_record(key, value)
        if found is not None:
            self._set(*found)

    def load_marker(self, producer_id: int, *, committed: bool) -> None:
        """Nobody writes here in transactions."""

    def loaded(self, now: Now) -> Effects:
        """The log has been read to its end: begin to serve, and go on with what is decided."""
        self._now = now
        for transactional_id, known in list(self._known.items()):
            if known.is_prepared:
                self._mark(transactional_id, known)
        if self._open:
            self._schedule_overdue()
        self._schedule_expiry()
        return self._effects()

    # -- requests ------------------------------------------------------------------------------------

    def init_producer_id(
        self, now: Now, ticket: Ticket, transactional_id: str, timeout_ms: int, given: Given | None
    ) -> Effects:
        """Answers `Told`."""
        self._now = now
        self._init(ticket, transactional_id, timeout_ms, given)
        return self._effects()

    def _init(self, ticket: Ticket, transactional_id: str, timeout_ms: int, given: Given | None) -> None:
        present = self._known.get(transactional_id)
        try:
            if present is None:
                present = created(self._new_producer_id(), timeout_ms)
            found = initialised(present, given, timeout_ms, self._now.wall_ms, self._new_producer_id)
        except NoProducerId:
            found = Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        match found:
            case Answer(code=BUSY.code):
                again = partial(self._init, ticket, transactional_id, timeout_ms, given)
                self._park(transactional_id, again, ticket, Told)
            case Answer(code=code):
                self._answer_unwritten(transactional_id, ticket, Told(code), Told)
            case Fence(next=prepared):
                # The caller comes again, and then gets the epoch after this one.
                self._decide(transactional_id, prepared, ticket, Told(BUSY.code))
            case _:
                told = Told(ErrorCode.NONE, Given(found.producer_id, found.epoch))
                self._write(transactional_id, found, *self._to_answer(ticket, told, Told))

    def add_partitions(
        self,
        now: Now,
        ticket: Ticket,
        transactional_id: str,
        given: Given,
        places: Collection[Place],
        *,
        verify_only: bool,
        client_version: int,
    ) -> Effects:
        """Answers `Codes`. `verify_only`: nothing is added, the codes say what is part of the transaction."""
        self._now = now

        def refused(code: ErrorCode) -> Codes:
            return dict.fromkeys(places, code)

        present = self._known.get(transactional_id)
        if not transactional_id:
            self._answer(ticket, refused(ErrorCode.INVALID_REQUEST))
        elif present is None:
            code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            self._answer_unwritten(transactional_id, ticket, refused(code), refused)
        elif verify_only:
            codes = verified(present, given, places)
            self._answer_unwritten(transactional_id, ticket, codes, refused)
        else:
            self._add(ticket, transactional_id, given, places, client_version, refused)
        return self._effects()

    def _add(
        self,
        ticket: Ticket,
        transactional_id: str,
        given: Given,
        places: Collection[Place],
        client_version: int,
        refused: Callable[[ErrorCode], Codes],
    ) -> None:
        present = self._known[transactional_id]
        found = with_places(present, given, places, self._now.wall_ms, client_version)
        if found == BUSY:
            again = partial(self._add, ticket, transactional_id, given, places, client_version, refused)
            self._park(transactional_id, again, ticket, refused)
        elif isinstance(found, Answer):
            self._answer_unwritten(transactional_id, ticket, refused(found.code), refused)
        else:
            waiting = self._to_answer(ticket, refused(ErrorCode.NONE), refused)
            self._write(transactional_id, found, *waiting)

    def _park(
        self,
        transactional_id: str,
        again: Callable[[], None],
        ticket: Ticket,
        refused: Callable[[ErrorCode], object],
    ) -> None:
        """The markers of the transaction before are being written: wait for them a moment."""
        self._parking.park(
            transactional_id, self._now.ms, again, lambda code: self._answer(ticket, refused(code))
        )

    def end(
        self, now: Now, ticket: Ticket, transactional_id: str, given: Given, *, commit: bool, bump: bool
    ) -> Effects:
        """Answers `Told`. `bump`: the next transaction is to have the next epoch (EndTxn from version 5)."""
        self._now = now
        self._end(ticket, transactional_id, given, commit, bump)
        return self._effects()

    def _end(self, ticket: Ticket, transactional_id: str, given: Given, commit: bool, bump: bool) -> None:
        if bump and not commit and self._is_early(transactional_id, given):
            again = partial(self._end, ticket, transactional_id, given, commit, bump)
            self._park(transactional_id, again, ticket, Told)
            return
        found = self._ended(transactional_id, given, commit=commit, bump=bump)
        if isinstance(found, Transaction):
            producer = answered(found) if bump else NOBODY
            self._decide(transactional_id, found, ticket, Told(ErrorCode.NONE, producer))
            return
        told = Told(found.code)
        if bump and found.code is ErrorCode.NONE:
            told = Told(found.code, answered(self._known[transactional_id]))
        self._answer_unwritten(transactional_id, ticket, told, Told)

    def _is_early(self, transactional_id: str, given: Given) -> bool:
        """Whether a client aborts a transaction in which it wrote nothing, and the markers of the one before
        are being written. It was told of its epoch already. Kafka takes it for fenced, which it is not."""
        present = self._known.get(transactional_id)
        return present is not None and present.is_prepared and given == answered(present)

    def _ended(
        self, transactional_id: str, given: Given, *, commit: bool, bump: bool
    ) -> Transaction | Answer:
        if not transactional_id:
            return Answer(ErrorCode.INVALID_REQUEST)
        present = self._known.get(transactional_id)
        if present is None:
            return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        wall_ms = self._now.wall_ms
        if not bump:
            return ended(present, given, commit=commit, now_ms=wall_ms)
        try:
            return ended_with_bump(
                present, given, commit=commit, now_ms=wall_ms, new_producer_id=self._new_producer_id
            )
        except NoProducerId:
            return Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def described(self, transactional_id: str) -> Transaction | None:
        """As storage has it. Changes nothing and never waits."""
        return self._journal.durable_form(transactional_id, self._known.get(transactional_id))

    def listed(self) -> Iterator[tuple[str, Transaction]]:
        """All ids, as storage has them. Changes nothing and never waits."""
        for transactional_id in sorted(self._known.keys() | self._journal.changed()):
            known = self.described(transactional_id)
            if known is not None:
                yield transactional_id, known

    # -- markers -------------------------------------------------------------------------------------

    def markers_written(
        self, now: Now, transactional_id: str, ending: Ending, places: Collection[Place]
    ) -> Effects:
        """These partitions have the marker, or need none because they are gone."""
        self._now = now
        left = self._to_mark.get(transactional_id)
        if left is not None and self._ending(self._known[transactional_id]) == ending:
            left.difference_update(places)
            if not left:
                del self._to_mark[transactional_id]
                self._complete(transactional_id)
        return self._effects()

    def _decide(
        self, transactional_id: str, prepared: Transaction, ticket: Ticket | None, told: Told
    ) -> None:
        """Write how a transaction ends. When that is durable the sender is answered and markers are sent."""
        done, failed = (_nothing, _ignore) if ticket is None else self._to_answer(ticket, told, Told)
        if not prepared.places:
            self._write(transactional_id, completed(prepared, self._now.wall_ms), done, failed)
            return

        def durable() -> None:
            done()
            self._mark(transactional_id, prepared)

        self._write(transactional_id, prepared, durable, failed)

    def _mark(self, transactional_id: str, prepared: Transaction) -> None:
        if prepared.places:
            self._to_mark[transactional_id] = set(prepared.places)
            self._errands.append(Marking(transactional_id, self._ending(prepared), prepared.places))
        else:
            self._complete(transactional_id)

    def _ending(self, prepared: Transaction) -> Ending:
        return Ending(
            producer_id=prepared.producer_id,
            producer_epoch=prepared.epoch,
            committed=prepared.state is State.PREPARE_COMMIT,
            coordinator_epoch=self.coordinator_epoch,
            version=prepared.client_version,
        )

    def _complete(self, transactional_id: str) -> None:
        """Every partition has its marker."""

        def failed(_code: ErrorCode) -> None:
            # The markers stay. Only that they are there is to be written down.
            again_at = self._now.ms + _COMPLETE_AGAIN_MS
            self._timers.schedule(("complete", transactional_id), again_at, again)

        def again() -> None:
            known = self._known.get(transactional_id)
            if known is not None and known.is_prepared and transactional_id not in self._to_mark:
                self._complete(transactional_id)

        done = completed(self._known[transactional_id], self._now.wall_ms)
        self._write(transactional_id, done, _nothing, failed)
        self._parking.release(transactional_id)

    # -- time ----------------------------------------------------------------------------------------

    def set_timing(self, timing: Timing) -> None:
        """What was scheduled under the old one stays as it is."""
        self._timing = timing

    def tick(self, now: Now) -> Effects:
        self._now = now
        while (action := self._timers.pop_due(now.ms)) is not None:
            action()
        return self._effects()

    def _abort_overdue(self) -> None:
        wall_ms = self._now.wall_ms
        for transactional_id in list(self._open):
            known = self._known[transactional_id]
            if is_overdue(known, wall_ms):
                try:
                    prepared = fenced(known, wall_ms, self._new_producer_id)
                except NoProducerId:
                    continue  # At the next look there will be one.
                self._decide(transactional_id, prepared, None, Told(ErrorCode.NONE))
        if self._open:
            self._schedule_overdue()

    def _schedule_overdue(self) -> None:
        self._timers.schedule("overdue", self._now.ms + self._timing.overdue_check_ms, self._abort_overdue)

    def _schedule_expiry(self) -> None:
        check_at = self._now.ms + self._timing.expiry_check_ms
        self._timers.schedule("expiry", check_at, lambda: self._expire(list(self._known)))

    def _expire(self, ids: list[str]) -> None:
        """Look at some ids now and at the rest a little later."""
        for transactional_id in ids[:_EXPIRY_SLICE]:
            known = self._known.get(transactional_id)
            if (
                known is not None
                and is_expired(known, self._now.wall_ms, self._timing.expiration_ms)
                and not self._journal.changes(transactional_id)
            ):
                self._write(transactional_id, None, _nothing, _ignore)
        rest = ids[_EXPIRY_SLICE:]
        if rest:
            again_at = self._now.ms + _EXPIRY_PAUSE_MS
            self._timers.schedule("expiry", again_at, lambda: self._expire(rest))
        else:
            self._schedule_expiry()

    # -- writing -------------------------------------------------------------------------------------

    def _write(
        self, transactional_id: str, transaction: Transaction | None, durable: Durable, failed: Failed
    ) -> None:
        """An id has another state from now on; None: it is forgotten."""
        self._journal.remember(transactional_id, lambda: self._known.get(transactional_id))
        self._set(transactional_id, transaction)
        value = None if transaction is None else to_value(transaction)
        self._journal.append([Record(to_key(transactional_id), value)], durable, failed)

    def _set(self, transactional_id: str, transaction: Transaction | None) -> None:
        if transaction is None:
            self._known.pop(transactional_id, None)
        else:
            self._known[transactional_id] = transaction
        if transaction is None or transaction.state is not State.ONGOING:
            self._open.pop(transactional_id, None)
        elif transactional_id not in self._open:
            self._open[transactional_id] = None
            if "overdue" not in self._timers:
                self._schedule_overdue()

    def durable(self, now: Now) -> Effects:
        """The batch that was handed out last is on storage to stay."""
        self._now = now
        for done, _ in self._journal.finish():
            done()
        return self._effects()

    def failed(self, now: Now, code: ErrorCode) -> Effects:
        """The batch that was handed out last is not on storage, and will not be."""
        self._now = now
        before, waiting = self._journal.fail()
        for transactional_id, transaction in before.items():
            self._set(transactional_id, transaction)
        for _, failed in waiting:
            failed(code)
        return self._effects()

    def unload(self, now: Now) -> Effects:
        """The partition has another leader: everybody who waits is sent there."""
        self._now = now
        for _, failed in self._journal.give_up()[1]:
            failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._parking.refuse_all(ErrorCode.NOT_COORDINATOR)
        return Effects(self._taken_answers(), None, None)

    # -- answers -------------------------------------------------------------------------------------

    def _answer(self, ticket: Ticket, answer: object) -> None:
        self._answers.append((ticket, answer))

    def _answer_unwritten(
        self, transactional_id: str, ticket: Ticket, answer: object, refused: Callable[[ErrorCode], object]
    ) -> None:
        """An answer without a write: at once, or when the writes that it rests on are durable."""
        if self._journal.changes(transactional_id):
            self._journal.then(*self._to_answer(ticket, answer, refused))
        else:
            self._answer(ticket, answer)

    def _to_answer(
        self, ticket: Ticket, answer: object, refused: Callable[[ErrorCode], object]
    ) -> tuple[Durable, Failed]:
        return (
            lambda: self._answer(ticket, answer),
            lambda code: self._answer(ticket, refused(error_after_append(code))),
        )

    def _new_producer_id(self) -> int:
        taken = self._new_id()
        if taken is None:
            raise NoProducerId
        return taken

    def _effects(self) -> Effects:
        errands, self._errands = self._errands, []
        batch = self._journal.take()
        return Effects(self._taken_answers(), batch, self._timers.next_deadline(), errands)

    def _taken_answers(self) -> list[tuple[Ticket, object]]:
        answers, self._answers = self._answers, []
        return answers


def _nothing() -> None:
    """Nobody waits for this write."""


def _ignore(_code: ErrorCode) -> None:
    """Nobody is told that this write failed. What it would have said is said again later."""
