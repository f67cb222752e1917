"""The simulator: what it finds is there again the next time, and it finds what is broken on purpose."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.broken import VARIANTS
from simulation.play import play

ROOT = Path(__file__).parents[2]
SEEDS_MAX = 40
"""Within so many seeds, brokers that are broken on purpose are caught; it takes fewer than ten."""


def test_seeds_keep_their_promises() -> None:
    for seed in range(8):
        outcome = play(seed, seconds=8)
        assert outcome.violations == [], f"python -m simulation --seed {seed} --seconds 8"
        assert outcome.acknowledged and outcome.reads, f"nothing happened in seed {seed}"


def test_a_seed_is_the_same_in_another_process() -> None:
    """Also with other hashes of strings, and after other seeds."""
    play(1, seconds=3)
    here = [play(seed).digest for seed in (3, 13)]
    program = "from simulation.play import play; print(*(play(seed).digest for seed in (3, 13)))"
    for hash_seed in ("1", "2", "3"):
        told = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.split() == here


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_brokers_that_are_broken_on_purpose_are_caught(variant: str) -> None:
    assert any(play(seed, variant, kind="objects").violations for seed in range(SEEDS_MAX))


@pytest.mark.parametrize("variant", ["ack-early", "fencing", "no-seal"])
def test_brokers_that_are_broken_on_a_directory_are_caught(variant: str) -> None:
    assert any(play(seed, variant, kind="os").violations for seed in range(SEEDS_MAX))
