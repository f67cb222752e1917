"""Brokers whose transactions are broken on purpose, for `simulation/broken.py`.

marker-early   markers are sent before it is durable that the transaction ends
no-fence       a producer that begins with an id leaves the epoch as it is
unstable       readers at read_committed are led past open transactions
offsets-early  offsets of a transaction are visible before it ends
unguarded      the first batch of a transaction of version 1 is let in without asking the coordinator
overtaken      a marker that overtakes the first batch of a transaction does not keep it out
forgotten      a coordinator that takes over does not go on with what was decided
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.transactions.asking import Admission
from penstock.groups.offsets.committed import Offsets
from penstock.log.guards import NOT_ASKED, Guard, Guards
from penstock.log.partition import PartitionLog
from penstock.shards.shard import Effects, Now, Ticket
from penstock.transactions import shard, timeouts, transaction
from penstock.transactions.admission import Manner
from penstock.transactions.core import Marking, Told
from penstock.transactions.decisions import Decisions
from penstock.transactions.shard import TransactionShard
from penstock.transactions.transaction import NO_EPOCH, Given, Transaction

Changes = list[tuple[Any, str, Any]]


def marker_early() -> Changes:
    real = Decisions.decide

    def decide(self: Decisions, name: str, prepared: Transaction, ticket: Ticket | None, told: Told) -> None:
        real(self, name, prepared, ticket, told)
        if prepared.places:
            self._c.errands.append(Marking(name, self.ending(prepared), prepared.places))

    return [(Decisions, "decide", decide)]


def no_fence() -> Changes:
    really_initialised, really_fenced = transaction.initialised, transaction.fenced

    def initialised(present: Transaction, given: Given | None, *rest: Any) -> Any:
        found = really_initialised(present, given, *rest)
        if isinstance(found, Transaction) and present.epoch != NO_EPOCH:
            return found.with_changes(epoch=present.epoch)
        return found

    def fenced(present: Transaction, *rest: Any) -> Transaction:
        return really_fenced(present, *rest).with_changes(epoch=present.epoch)

    return [(shard, "initialised", initialised), (timeouts, "fenced", fenced)]


def unstable() -> Changes:
    real = PartitionLog.publish

    def publish(self: PartitionLog, end_offset: int, stable_offset: int) -> None:
        real(self, end_offset, end_offset)

    return [(PartitionLog, "publish", publish)]


def offsets_early() -> Changes:
    real = Offsets.put

    def put(
        self: Offsets, group_id: str, topic: str, partition: int, value: Any, producer_id: int = 0
    ) -> None:
        real(self, group_id, topic, partition, value)

    return [(Offsets, "put", put)]


def unguarded() -> Changes:
    real = Admission._guard

    def guard(self: Admission, partition: Any, given: Given, manner: Manner) -> Guard | None:
        return real(self, partition, given, manner) if manner.adds else NOT_ASKED

    return [(Admission, "_guard", guard)]


def overtaken() -> Changes:
    def end(self: Guards, producer_id: int, epoch: int) -> None:
        """What was allowed once stays allowed."""

    return [(Guards, "end", end)]


def forgotten() -> Changes:
    def loaded(self: TransactionShard, now: Now) -> Effects:
        self._c.now = now
        self._timeouts.begin()
        return self._c.effects()

    return [(TransactionShard, "loaded", loaded)]


VARIANTS: dict[str, Callable[[], Changes]] = {
    "marker-early": marker_early,
    "no-fence": no_fence,
    "unstable": unstable,
    "offsets-early": offsets_early,
    "unguarded": unguarded,
    "overtaken": overtaken,
    "forgotten": forgotten,
}
