"""One partition of `__transaction_state`: all transactional ids in it, and all that can happen to them.

Each method is an event, as `shards/shard.py` says. `transaction.py` decides what a request makes of an id;
this module writes that down and answers when it is durable (`core.py`). `decisions.py` brings a transaction
whose end is decided to its completion; `timeouts.py` looks after ids that nobody asks about.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial

from penstock.shards.shard import Effects, Now, Ticket, error_after_append
from penstock.transactions.core import NOBODY, Codes, Context, NoProducerId, Told
from penstock.transactions.decisions import Decisions
from penstock.transactions.ending import Ending
from penstock.transactions.parking import Parking
from penstock.transactions.records import read_record
from penstock.transactions.timeouts import Timeouts, Timing
from penstock.transactions.transaction import (
    BUSY,
    NO_PRODUCER,
    Answer,
    Fence,
    Given,
    Place,
    Transaction,
    answered,
    created,
    ended,
    ended_with_bump,
    initialised,
    verified,
    with_places,
)
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode


class TransactionShard:
    __slots__ = ("_c", "_decisions", "_parking", "_timeouts")

    def __init__(
        self, coordinator_epoch: int, timing: Timing, new_producer_id: Callable[[], int | None]
    ) -> None:
        """`coordinator_epoch`: the leader epoch of the partition. `new_producer_id`: one that nobody has, or
        None if none is at hand."""
        self._c = Context(new_producer_id)
        self._parking = Parking(self._c.timers)
        self._decisions = Decisions(self._c, self._parking, coordinator_epoch)
        self._timeouts = Timeouts(self._c, self._decisions, timing)

    # -- load ----------------------------------------------------------------------------------------

    def load(self, key: Buffer, value: Buffer | None, producer_id: int = NO_PRODUCER) -> None:
        """One record of the log."""
        found = read_record(key, value)
        if found is not None:
            self._c.set(*found)

    def load_marker(self, producer_id: int, *, committed: bool) -> None:
        """Nobody writes here in transactions."""

    def loaded(self, now: Now) -> Effects:
        """The log has been read to its end: begin to serve, and go on with what is decided."""
        self._c.now = now
        for transactional_id, known in list(self._c.known.items()):
            if known.is_prepared:
                self._decisions.mark(transactional_id, known)
        self._timeouts.begin()
        return self._c.effects()

    # -- requests ------------------------------------------------------------------------------------

    def init_producer_id(
        self, now: Now, ticket: Ticket, transactional_id: str, timeout_ms: int, given: Given | None
    ) -> Effects:
        """Answers `Told`."""
        self._c.now = now
        self._init(ticket, transactional_id, timeout_ms, given)
        return self._c.effects()

    def _init(self, ticket: Ticket, transactional_id: str, timeout_ms: int, given: Given | None) -> None:
        present = self._c.known.get(transactional_id)
        try:
            if present is None:
                present = created(self._c.new_producer_id(), timeout_ms)
            found = initialised(present, given, timeout_ms, self._c.now.wall_ms, self._c.new_producer_id)
        except NoProducerId:
            found = Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        match found:
            case Answer(code=BUSY.code):
                again = partial(self._init, ticket, transactional_id, timeout_ms, given)
                self._park(transactional_id, again, ticket, Told)
            case Answer(code=code):
                self._c.answer_unwritten(transactional_id, ticket, Told(code), Told)
            case Fence(next=prepared):
                # The caller comes again, and then gets the epoch after this one.
                self._decisions.decide(transactional_id, prepared, ticket, Told(BUSY.code))
            case _:
                told = Told(ErrorCode.NONE, Given(found.producer_id, found.epoch))
                self._c.write(transactional_id, found, *self._c.to_answer(ticket, told, Told))

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
        self._c.now = now

        def refused(code: ErrorCode) -> Codes:
            return dict.fromkeys(places, code)

        present = self._c.known.get(transactional_id)
        if not transactional_id:
            self._c.answer(ticket, refused(ErrorCode.INVALID_REQUEST))
        elif present is None:
            code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            self._c.answer_unwritten(transactional_id, ticket, refused(code), refused)
        elif verify_only:
            codes = verified(present, given, places)
            self._c.answer_unwritten(transactional_id, ticket, codes, refused)
        else:
            self._add(ticket, transactional_id, given, places, client_version, refused)
        return self._c.effects()

    def _add(
        self,
        ticket: Ticket,
        transactional_id: str,
        given: Given,
        places: Collection[Place],
        client_version: int,
        refused: Callable[[ErrorCode], Codes],
    ) -> None:
        present = self._c.known[transactional_id]
        found = with_places(present, given, places, self._c.now.wall_ms, client_version)
        if found == BUSY:
            again = partial(self._add, ticket, transactional_id, given, places, client_version, refused)
            self._park(transactional_id, again, ticket, refused)
        elif isinstance(found, Answer):
            self._c.answer_unwritten(transactional_id, ticket, refused(found.code), refused)
        elif not self._c.takes(transactional_id, found):
            # Before it is part of the transaction: the records that end one with as much are always written.
            self._c.answer(ticket, refused(error_after_append(ErrorCode.MESSAGE_TOO_LARGE)))
        else:
            waiting = self._c.to_answer(ticket, refused(ErrorCode.NONE), refused)
            self._c.write(transactional_id, found, *waiting)

    def _park(
        self,
        transactional_id: str,
        again: Callable[[], None],
        ticket: Ticket,
        refused: Callable[[ErrorCode], object],
    ) -> None:
        """The markers of the transaction before are being written: wait for them a moment."""
        self._parking.park(
            transactional_id, self._c.now.ms, again, lambda code: self._c.answer(ticket, refused(code))
        )

    def end(
        self, now: Now, ticket: Ticket, transactional_id: str, given: Given, *, commit: bool, bump: bool
    ) -> Effects:
        """Answers `Told`. `bump`: the next transaction is to have the next epoch (EndTxn from version 5)."""
        self._c.now = now
        self._end(ticket, transactional_id, given, commit, bump)
        return self._c.effects()

    def _end(self, ticket: Ticket, transactional_id: str, given: Given, commit: bool, bump: bool) -> None:
        found = self._ended(transactional_id, given, commit=commit, bump=bump)
        if found == BUSY and bump:
            # Only where epochs tell transactions apart: else what is late could end the next one.
            again = partial(self._end, ticket, transactional_id, given, commit, bump)
            self._park(transactional_id, again, ticket, Told)
            return
        if isinstance(found, Transaction):
            producer = answered(found) if bump else NOBODY
            self._decisions.decide(transactional_id, found, ticket, Told(ErrorCode.NONE, producer))
            return
        told = Told(found.code)
        if bump and found.code is ErrorCode.NONE:
            told = Told(found.code, answered(self._c.known[transactional_id]))
        self._c.answer_unwritten(transactional_id, ticket, told, Told)

    def _ended(
        self, transactional_id: str, given: Given, *, commit: bool, bump: bool
    ) -> Transaction | Answer:
        if not transactional_id:
            return Answer(ErrorCode.INVALID_REQUEST)
        present = self._c.known.get(transactional_id)
        if present is None:
            return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        wall_ms = self._c.now.wall_ms
        if not bump:
            return ended(present, given, commit=commit, now_ms=wall_ms)
        try:
            return ended_with_bump(
                present, given, commit=commit, now_ms=wall_ms, new_producer_id=self._c.new_producer_id
            )
        except NoProducerId:
            return Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def described(self, transactional_id: str) -> Transaction | None:
        """As storage has it. Changes nothing and never waits."""
        return self._c.journal.durable_form(transactional_id, self._c.known.get(transactional_id))

    def listed(self) -> Iterator[tuple[str, Transaction]]:
        """All ids, as storage has them. Changes nothing and never waits."""
        for transactional_id in sorted(self._c.known.keys() | self._c.journal.changed()):
            known = self.described(transactional_id)
            if known is not None:
                yield transactional_id, known

    # -- markers -------------------------------------------------------------------------------------

    def markers_written(
        self, now: Now, transactional_id: str, ending: Ending, places: Collection[Place]
    ) -> Effects:
        """These partitions have the marker, or need none because they are gone."""
        self._c.now = now
        self._decisions.marked(transactional_id, ending, places)
        return self._c.effects()

    # -- time ----------------------------------------------------------------------------------------

    def set_topic_bytes_max(self, size: int) -> None:
        """`max.message.bytes` of the topic."""
        self._c.journal.topic_bytes_max = size

    def set_timing(self, timing: Timing) -> None:
        """What was scheduled under the old one stays as it is."""
        self._timeouts.timing = timing

    def tick(self, now: Now) -> Effects:
        self._c.now = now
        while (action := self._c.timers.pop_due(now.ms)) is not None:
            action()
        return self._c.effects()

    # -- writing -------------------------------------------------------------------------------------

    def durable(self, now: Now) -> Effects:
        """The batch that was handed out last is on storage to stay."""
        self._c.now = now
        for done, _ in self._c.journal.finish():
            done()
        return self._c.effects()

    def failed(self, now: Now, code: ErrorCode) -> Effects:
        """The batch that was handed out last is not on storage, and will not be."""
        self._c.now = now
        before, waiting = self._c.journal.fail()
        for transactional_id, transaction in before.items():
            self._c.set(transactional_id, transaction)
        for _, failed in waiting:
            failed(code)
        return self._c.effects()

    def unload(self, now: Now) -> Effects:
        """The partition has another leader: everybody who waits is sent there."""
        self._c.now = now
        for _, failed in self._c.journal.give_up()[1]:
            failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._parking.refuse_all(ErrorCode.NOT_COORDINATOR)
        return Effects(self._c.taken_answers(), None, None)
