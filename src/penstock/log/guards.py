"""Guards: the first batch of a transaction gets into a partition only while the coordinator knows of it.

A transaction that the coordinator does not know is ended by nobody, and holds up readers for ever. So before
the first batch of a producer's epoch is appended, the coordinator is asked whether the partition is part of
the transaction (or is told that it is, from transaction version 2 on). The answer takes time, and the
transaction may end meanwhile: its marker overtakes the batch. A guard shows that. It is made before the
question and goes with the batch into the log. A marker ends the guards of its producer, and a batch whose
guard has ended is refused. A guard is told by its identity: one of the next transaction is another.

From transaction version 2 on, a marker has the epoch that follows the epoch of its transaction, which is the
epoch of the next one. The next transaction may have asked already, and its guards stay.

    asked     begun, the answer is awaited
    allowed   the coordinator knows: the partition is part of the transaction until a marker says otherwise
    gone      ended by a marker, or the coordinator did not allow it

An open transaction needs no guard: it was begun with one, and a marker ends it.

When a batch was not admitted, others of its producer may be on their way behind it. None of them may become
the first instead: the lowest sequence that asked is remembered until a marker comes, as in Kafka. That
counts only where the partition knows no batch of this epoch; where it does, the next sequence is known.
"""

from __future__ import annotations

from penstock.log.producers import NO_SEQUENCE, ProducerEntry
from penstock.wire.errors import ErrorCode

REMEMBERED_MAX = 1_000
"""Producers whose lowest sequence is remembered after a failure. Who comes again does so within seconds."""


class Guard:
    """One question about one producer's epoch in one partition."""

    __slots__ = ("allowed", "begins_epoch", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int, *, begins_epoch: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        self.begins_epoch = begins_epoch
        """Each transaction has an epoch of its own (transaction version 2), so its sequences begin at 0."""
        self.allowed = False


NOT_ASKED = Guard(0, NO_SEQUENCE, begins_epoch=False)
"""For batches that are let in without a question, because the settings say so."""


class GuardedBatch(bytearray):
    """A batch that may be the first of its transaction, with the guard that lets it in."""

    __slots__ = ("guard",)

    guard: Guard

    @classmethod
    def of(cls, batch: bytearray | memoryview, guard: Guard) -> GuardedBatch:
        made = cls(batch)
        made.guard = guard
        return made


class Guards:
    """The guards of one partition."""

    __slots__ = ("_by_producer", "_lowest")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[int, Guard]] = {}
        """By producer id and epoch. A late batch of an old epoch does not take the place of a new one."""
        self._lowest: dict[int, tuple[int, int]] = {}
        """By producer id: its latest epoch that was not admitted, and the lowest sequence that asked."""

    def __len__(self) -> int:
        return sum(map(len, self._by_producer.values()))

    def of(self, producer_id: int, epoch: int) -> Guard | None:
        epochs = self._by_producer.get(producer_id)
        return None if epochs is None else epochs.get(epoch)

    def begin(self, producer_id: int, epoch: int, sequence: int, *, begins_epoch: bool) -> Guard:
        """A guard for a question that is about to be asked. There is none for this epoch yet."""
        before = self._lowest.get(producer_id)
        if before is not None and before[0] == epoch:
            sequence = min(sequence, before[1])
            del self._lowest[producer_id]
        guard = Guard(epoch, sequence, begins_epoch=begins_epoch)
        self._by_producer.setdefault(producer_id, {})[epoch] = guard
        return guard

    def fail(self, producer_id: int, guard: Guard) -> None:
        """The coordinator did not allow it, or could not be asked."""
        if self.of(producer_id, guard.epoch) is not guard:
            return
        epochs = self._by_producer[producer_id]
        del epochs[guard.epoch]
        if not epochs:
            del self._by_producer[producer_id]
        known = self._lowest.get(producer_id)
        if guard.lowest_sequence != NO_SEQUENCE and (known is None or known[0] <= guard.epoch):
            self._lowest[producer_id] = guard.epoch, guard.lowest_sequence
            if len(self._lowest) > REMEMBERED_MAX:
                del self._lowest[next(iter(self._lowest))]

    def end(self, producer_id: int, epoch: int) -> None:
        """A marker of a transaction of this epoch was staged: what was asked before it, of this epoch or one
        before, says nothing any more."""
        known = self._lowest.get(producer_id) if self._lowest else None
        if known is not None and known[0] <= epoch:
            del self._lowest[producer_id]
        epochs = self._by_producer.get(producer_id) if self._by_producer else None
        if epochs is None:
            return
        for ended in [one for one in epochs if one <= epoch]:
            del epochs[ended]
        if not epochs:
            del self._by_producer[producer_id]

    def refusal(
        self,
        guard: Guard | None,
        producer_id: int,
        epoch: int,
        sequence: int,
        entry: ProducerEntry | None,
    ) -> ErrorCode | None:
        """Why a batch that would begin a transaction may not. `entry`: what the partition knows of its
        producer."""
        if guard is NOT_ASKED:
            return None
        if guard is None or self.of(producer_id, epoch) is not guard:
            return ErrorCode.INVALID_TXN_STATE
        if sequence == NO_SEQUENCE:
            return None
        if entry is not None and entry.epoch == epoch and entry.batches:
            # The log knows which sequence is next. A late copy of an old batch may have asked before it.
            return None
        if sequence > guard.lowest_sequence or (guard.begins_epoch and sequence != 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return None
