"""Transactions in the simulated world: they happen, they hold, and brokers that break them are caught."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.play import play
from simulation.scene import Outcome
from simulation.transactions.broken import VARIANTS
from simulation.transactions.decisions import Decisions
from simulation.transactions.faults import COMPLETE, KINDS, MARKER, PREPARE, stages_in
from simulation.worlds import variety_of

from penstock.metadata.image import WalRef
from penstock.transactions.records import to_key, to_value
from penstock.transactions.transaction import Place, State, Transaction
from penstock.wire.batch import Record, build_batch
from penstock.wire.markers import COMMIT, marker_batch

ROOT = Path(__file__).parents[2]
LINES_ALL = 10**6
CAUGHT_SEEDS_MAX = 120
AIMED = (*KINDS, "crash", "pause", "cut", "flaky")
"""Faults that hit transactions, and few others."""
WITH_TRANSACTIONS = [seed for seed in range(40) if variety_of(seed, None, ()).transactions]


def _state(state: State) -> bytes:
    transaction = Transaction(
        producer_id=7, epoch=3, timeout_ms=900_000, state=state, places=frozenset({Place("x0", 1)})
    )
    return bytes(build_batch([Record(0, 1, to_key("tx-p0"), to_value(transaction))]))


@pytest.mark.parametrize(
    ("contents", "stages"),
    [
        (_state(State.PREPARE_COMMIT), [PREPARE]),
        (_state(State.PREPARE_ABORT), [PREPARE]),
        (_state(State.COMPLETE_COMMIT), [COMPLETE]),
        (_state(State.ONGOING), []),
        (_state(State.PREPARE_ABORT) + bytes(marker_batch(COMMIT, 7, 3, 2, 1)), [PREPARE, MARKER]),
        (bytes(build_batch([Record(0, 1, b"key", b"<p0-0-1>")])), []),
    ],
)
def test_the_stages_of_a_transaction_are_found_in_what_is_written(contents: bytes, stages: list[str]) -> None:
    assert stages_in(contents) == stages


def test_a_marker_before_its_decision_is_found() -> None:
    found: list[str] = []
    decisions = Decisions(lambda kind, text: found.append(f"{kind}: {text}"))
    wal, marker = WalRef(2, 5), bytes(marker_batch(COMMIT, 7, 3, 2, 1_700_000_000_000))
    decisions.look(wal, _state(State.ONGOING))
    decisions.look(wal, _state(State.PREPARE_ABORT))
    decisions.look(wal, marker)
    assert found == ["T undecided: b2 wrote that producer 7 epoch 3 has a commit"]
    decisions.look(wal, _state(State.PREPARE_COMMIT))
    decisions.look(wal, marker + marker)
    assert len(found) == 1


def _sound(seed: int, only: tuple[str, ...] = ()) -> Outcome:
    outcome = play(seed, seconds=8, keep=LINES_ALL, only=only)
    assert outcome.violations == [], f"python -m simulation --seed {seed} --seconds 8 --only {','.join(only)}"
    return outcome


def test_transactions_are_committed_and_aborted_and_break_no_promise() -> None:
    lines = [line for seed in WITH_TRANSACTIONS[:4] for line in _sound(seed).lines]
    assert any("said NONE to commit of txn-" in line for line in lines)
    assert any("said NONE to abort of txn-" in line for line in lines)
    assert any("said NONE to offset" in line for line in lines)
    assert any(
        "said PRODUCER_FENCED to" in line or "said INVALID_PRODUCER_EPOCH at" in line for line in lines
    )


def test_brokers_are_struck_in_the_middle_of_an_end() -> None:
    lines = [line for seed in range(8) for line in _sound(seed, ("aim",)).lines]
    for stage in (PREPARE, MARKER, COMPLETE):
        assert any(f"wrote a {stage}; " in line for line in lines), stage


def test_a_seed_with_transactions_is_the_same_under_other_hashes() -> None:
    seeds = WITH_TRANSACTIONS[:2]
    here = [f"{outcome.steps} {outcome.digest}" for outcome in map(play, seeds)]
    program = (
        "from simulation.play import play\n"
        f"for outcome in map(play, {seeds}): print(outcome.steps, outcome.digest)"
    )
    for hash_seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.splitlines() == here


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_brokers_whose_transactions_are_broken_are_caught(variant: str) -> None:
    assert any(play(seed, variant, only=AIMED).violations for seed in range(CAUGHT_SEEDS_MAX))
