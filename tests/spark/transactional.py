"""Transactions as partitions hold them, and what readers of each level should see of them."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from penstock.log.isolation import Isolation
from penstock.wire.batch import Record, build_batch
from penstock.wire.markers import ABORT, COMMIT, marker_batch

TIME = 1_700_000_000_000


def data(producer: int, sequence: int, *values: bytes, epoch: int = 0) -> bytearray:
    """A batch of a transaction."""
    records = [Record(at, TIME, None, value) for at, value in enumerate(values)]
    return build_batch(
        records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )


def commit(producer: int, epoch: int = 0) -> bytearray:
    return marker_batch(COMMIT, producer, epoch, 0, TIME)


def abort(producer: int, epoch: int = 0) -> bytearray:
    return marker_batch(ABORT, producer, epoch, 0, TIME)


class Row(NamedTuple):
    offset: int
    value: bytes


class _Transaction:
    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        self.kind: int | None = None


class History:
    """Makes batches of some producers in any order, and knows what became of each record. It shares no code
    with the reader: it keeps every record and the transaction that it belongs to."""

    def __init__(self, random: Random, producers: int = 3) -> None:
        self._random = random
        self._sequences = dict.fromkeys(range(1, producers + 1), 0)
        self._open: dict[int, _Transaction] = {}
        self._records: list[tuple[Row, _Transaction | None]] = []
        self.end = 0
        self.log_start = 0

    def batch(self) -> bytearray:
        """Some batch that may come next."""
        match self._random.random():
            case chance if chance < 0.2:
                return self.plain()
            case chance if chance < 0.5 and self._open:
                return self.marker(self._random.choice(list(self._open)))
            case _:
                return self.data(self._random.choice(list(self._sequences)))

    def plain(self) -> bytearray:
        count = self._random.randint(1, 3)
        rows = self._add(count, None)
        return build_batch([Record(at, TIME, None, row.value) for at, row in enumerate(rows)])

    def data(self, producer: int) -> bytearray:
        count = self._random.randint(1, 3)
        transaction = self._open.setdefault(producer, _Transaction(self.end))
        sequence = self._sequences[producer]
        self._sequences[producer] += count
        return data(producer, sequence, *(row.value for row in self._add(count, transaction)))

    def marker(self, producer: int) -> bytearray:
        kind = self._random.choice((ABORT, COMMIT))
        self._open.pop(producer).kind = kind
        self.end += 1
        return marker_batch(kind, producer, 0, 0, TIME)

    def _add(self, count: int, transaction: _Transaction | None) -> list[Row]:
        rows = [Row(self.end + at, b"%d" % (self.end + at)) for at in range(count)]
        self._records += [(row, transaction) for row in rows]
        self.end += count
        return rows

    @property
    def stable_end(self) -> int:
        first = min((one.first_offset for one in self._open.values()), default=self.end)
        return max(first, self.log_start)

    def end_for(self, isolation: Isolation) -> int:
        return self.stable_end if isolation is Isolation.READ_COMMITTED else self.end

    def rows(self, isolation: Isolation, low: int = 0, high: int | None = None) -> list[Row]:
        """What a reader of [low, high) sees, of what is not deleted."""
        low = max(low, self.log_start)
        high = min(self.end_for(isolation), self.end if high is None else high)
        committed = isolation is Isolation.READ_COMMITTED
        return [
            row
            for row, transaction in self._records
            if low <= row.offset < high
            and not (committed and transaction is not None and transaction.kind != COMMIT)
        ]
