"""The simulator: what it finds is there again the next time, and it finds what is broken on purpose."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.faults import KINDS
from simulation.loop import Halted, World
from simulation.play import play
from simulation.spinning import ends_in_time

ROOT = Path(__file__).parents[2]
SEEDS_MAX = 150
"""Within so many seeds, brokers that are broken on purpose are caught; most in fewer than ten."""
SICK_SEEDS_MAX = 120


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


def test_a_step_that_never_ends_is_found() -> None:
    world = World(random.Random(0))
    found: list[str] = []

    def tell(text: str) -> None:
        found.append(text)
        world.halted = True

    async def spin() -> None:
        while True:
            pass

    with ends_in_time(tell, seconds=0.05), pytest.raises(Halted):
        world.run_until_complete(world.process("p").spawn(spin()))
    world.close()
    assert "in spin" in found[0]


PROTOCOL = ("ack-early", "fencing", "no-seal", "sealed-end", "stale-image")
"""What is broken in the protocol between brokers, which ordinary faults show."""

SICK = {
    "closed": (("denied all", "crash"), None),
    "copies": (("full", "outage all"), "objects"),
    "log-ends": (("rot", "crash"), "fsync"),
    "page-cache": (("sync", "crash", "power"), "fsync"),
    "stale-reads": ((), None),
    "torn-entry": (("power",), "os"),
    "twice": (("pause",), None),
    "unopened": (("locked out",), None),
}
"""What is broken in dealing with a sick store: the faults that show it (none: all there are), and where."""


@pytest.mark.parametrize("variant", PROTOCOL)
def test_brokers_that_are_broken_on_purpose_are_caught(variant: str) -> None:
    assert any(play(seed, variant, kind="objects", only=KINDS).violations for seed in range(SEEDS_MAX))


@pytest.mark.parametrize("variant", ["ack-early", "fencing", "no-seal"])
def test_brokers_that_are_broken_on_a_directory_are_caught(variant: str) -> None:
    assert any(play(seed, variant, kind="os", only=KINDS).violations for seed in range(SEEDS_MAX))


@pytest.mark.parametrize("variant", sorted(SICK))
def test_brokers_that_cannot_deal_with_a_sick_store_are_caught(variant: str) -> None:
    only, kind = SICK[variant]
    assert any(play(seed, variant, kind=kind, only=only).violations for seed in range(SICK_SEEDS_MAX))
