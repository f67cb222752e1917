"""The simulator: what it finds is there again the next time, and it finds what is broken on purpose."""

import asyncio
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from simulation.faults import KINDS
from simulation.loop import Halted, World
from simulation.play import play
from simulation.spinning import ends_in_time

ROOT = Path(__file__).parents[2]
SEEDS_MAX = 150
"""Within so many seeds, brokers that are broken on purpose are caught; most in fewer than ten."""
SHOWN_SEEDS_MAX = 120
PLACED_SEEDS = (13, 20, 419)
"""In the second there are transactions; in the last, a broker stops while somebody waits for a group to be
loaded."""


def test_seeds_keep_their_promises() -> None:
    for seed in range(8):
        outcome = play(seed, seconds=8)
        assert outcome.violations == [], f"python -m simulation --seed {seed} --seconds 8"
        assert outcome.acknowledged and outcome.reads, f"nothing happened in seed {seed}"


def test_a_seed_is_the_same_in_another_process() -> None:
    """Also with other hashes of strings, and after other seeds."""
    play(1, seconds=3)
    here = [_told(seed) for seed in (3, 13)]
    program = "from tests.simulation.test_simulation import _told; print(_told(3), _told(13), sep='\\n')"
    for hash_seed in ("1", "2", "3"):
        told = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.splitlines() == here


def _told(seed: int) -> str:
    outcome = play(seed)
    return f"{outcome.steps} {outcome.digest}"


class _Placed(asyncio.Task[Any]):
    """A task that lies somewhere in particular, for sets and all else that asks for its hash."""

    places = itertools.count()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._place = next(self.places)
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._place


def test_a_seed_is_the_same_wherever_its_tasks_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of tasks has the order of their addresses, which no seed knows."""
    monkeypatch.setattr(asyncio, "Task", _Placed)
    for seed in PLACED_SEEDS:
        monkeypatch.setattr(_Placed, "places", itertools.count(1 << 40))
        upwards = _told(seed)
        monkeypatch.setattr(_Placed, "places", itertools.count(1 << 40, -1))
        assert _told(seed) == upwards, f"seed {seed}"


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

SHOWN_BY = {
    "closed": (("denied all", "crash"), None),
    "copies": (("full", "outage all"), "objects"),
    "listed": (("stale", "crash"), "objects"),
    "log-ends": (("rot", "crash"), "fsync"),
    "one-stops": (("footer", "crash"), None),
    "page-cache": (("sync", "crash", "power"), "fsync"),
    "stale-reads": (("pause", "sleep"), "objects"),
    "torn-entry": (("power",), "os"),
    "twice": (("pause",), None),
    "unopened": (("locked out",), None),
}
"""What is broken in ways that few faults show: which ones, and where."""


@pytest.mark.parametrize("variant", PROTOCOL)
def test_brokers_that_are_broken_on_purpose_are_caught(variant: str) -> None:
    assert any(play(seed, variant, kind="objects", only=KINDS).violations for seed in range(SEEDS_MAX))


@pytest.mark.parametrize("variant", ["ack-early", "fencing", "no-seal"])
def test_brokers_that_are_broken_on_a_directory_are_caught(variant: str) -> None:
    assert any(play(seed, variant, kind="os", only=KINDS).violations for seed in range(SEEDS_MAX))


@pytest.mark.parametrize("variant", sorted(SHOWN_BY))
def test_brokers_that_few_faults_show_to_be_broken_are_caught(variant: str) -> None:
    only, kind = SHOWN_BY[variant]
    assert any(play(seed, variant, kind=kind, only=only).violations for seed in range(SHOWN_SEEDS_MAX))
