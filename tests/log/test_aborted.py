"""Which aborted transactions a reader is told of, when a partition has very many."""

from __future__ import annotations

import random
from typing import SupportsIndex

import pytest

from penstock.log import markers, partition
from penstock.log.guards import NOT_ASKED, GuardedBatch
from penstock.log.markers import ABORTED_BLOCK, AbortedTransaction, Beginnings, touching
from penstock.log.partition import PartitionLog, Undo
from penstock.wire.batch import Record, build_batch
from penstock.wire.markers import ABORT, COMMIT, marker_batch

TIME = 1_700_000_000_000
LONG = 100_000
"""The producer whose transaction is open for long."""


class Counted(list[AbortedTransaction]):
    """Counts the transactions that are looked at."""

    looks = 0

    def __getitem__(self, at: SupportsIndex | slice) -> object:  # type: ignore[override]
        found = super().__getitem__(at)
        self.looks += len(found) if isinstance(found, list) else 1
        return found


def test_those_that_began_later_are_passed_over() -> None:
    # Offset 0 is open all the while, so that no stable offset tells a reader to stop.
    aborted = Counted(AbortedTransaction(1, 3 * at + 1, 3 * at + 3, 0) for at in range(100 * ABORTED_BLOCK))
    end = 3 * len(aborted) + 1
    aborted.append(AbortedTransaction(LONG, 0, end, end + 1))
    beginnings = Beginnings()
    first = touching(aborted, 3_000, 3_010, beginnings)
    aborted.looks = 0
    assert touching(aborted, 3_000, 3_010, beginnings) == first == touching(aborted, 3_000, 3_010)
    assert [one.first_offset for one in first] == [2_998, 3_001, 3_004, 3_007, 0]
    assert aborted.looks > 10_000  # Without what was learnt.
    aborted.looks = 0
    touching(aborted, 3_000, 3_010, beginnings)
    assert aborted.looks < 2 * ABORTED_BLOCK


@pytest.mark.parametrize("seed", range(20))
def test_readers_are_told_the_same_however_many_there_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "ABORTED_BLOCK", 4)
    monkeypatch.setattr(partition, "MANY_ABORTED", 0)
    chance = random.Random(seed)
    log = PartitionLog(leader_epoch=0)
    for _ in range(400):
        undo: list[Undo] = []
        start, producer = log.next_offset, chance.choice((1, 2, 3, 4, LONG))
        ends = producer in log.ongoing and chance.random() < (0.01 if producer == LONG else 0.6)
        if ends:
            log.stage(marker_batch(chance.choice((ABORT, ABORT, COMMIT)), producer, 0, 0, TIME), TIME, undo)
        else:
            batch = build_batch(
                [Record(at, TIME, None, b"x") for at in range(chance.randint(1, 3))],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=-1,
                transactional=True,
            )
            guarded = GuardedBatch.of(batch, NOT_ASKED)
            assert isinstance(log.stage(guarded, TIME, undo), tuple)
        what = chance.random()
        if what < 0.15:
            log.undo(start, undo)
        elif what < 0.18:
            log.advance_log_start(chance.randint(log.log_start_offset, log.next_offset))
        elif what < 0.22 and log.aborted:
            log.forget_aborted(chance.sample(log.aborted, chance.randint(1, len(log.aborted))))
        low = chance.randint(0, log.next_offset)
        high = low + chance.choice((1, 5, 50, 1000))
        expected = [one for one in log.aborted if one.last_offset >= low and one.first_offset < high]
        assert log.aborted_transactions(low, high) == expected
