"""What only some worlds have happens in them, and breaks no promise."""

from collections.abc import Callable

import pytest
from simulation.play import play
from simulation.scene import Outcome
from simulation.worlds import Variety, variety_of

SEEDS_MAX = 40
LINES_ALL = 10**6


def _worlds(wanted: Callable[[Variety], bool]) -> list[int]:
    """The first two seeds whose worlds are so."""
    return [seed for seed in range(SEEDS_MAX) if wanted(variety_of(seed, None, ()))][:2]


def _sound(seed: int, kind: str | None = None, only: tuple[str, ...] = ()) -> Outcome:
    outcome = play(seed, seconds=8, kind=kind, only=only, keep=LINES_ALL)
    assert outcome.violations == [], f"seed {seed}, store {kind}, only {only}"
    assert outcome.acknowledged and outcome.reads, f"nothing happened in seed {seed}"
    return outcome


@pytest.mark.parametrize("kind", ["etcd+objects", "etcd+os", "etcd+fsync"])
def test_the_metadata_log_is_in_etcd_which_fails_alone(kind: str) -> None:
    lines = _sound(1, kind, ("etcd out", "etcd leader", "etcd doubt", "crash")).lines
    assert any("faults     etcd" in line for line in lines)


def test_records_and_etcd_fail_apart() -> None:
    _sound(2, "etcd+objects", ("outage", "outage all", "etcd out", "etcd flaky"))


def test_a_topic_is_made_again_under_its_name() -> None:
    told = [_sound(seed).lines for seed in _worlds(lambda variety: variety.recreates)]
    assert all(any("incarnation 2 is" in line for line in lines) for lines in told)


def test_partitions_are_given_to_other_brokers() -> None:
    told = [_sound(seed).lines for seed in _worlds(lambda variety: variety.moves)]
    assert any("said NONE to a reassignment" in line for lines in told for line in lines)


def test_old_records_go_and_no_others() -> None:
    for seed in _worlds(lambda variety: variety.ages):
        _sound(seed)


def test_clocks_jump_and_machines_are_suspended() -> None:
    lines = _sound(5, None, ("jump", "sleep", "crash")).lines
    assert any("clock of" in line for line in lines)
    assert any("sleeps" in line for line in lines)


def test_objects_that_cannot_be_judged_keep_no_others() -> None:
    for kind in ("objects", "fsync"):
        lines = _sound(3, kind, ("footer", "crash")).lines
        assert any("of segments/" in line and line.endswith("rots") for line in lines)


def test_old_copies_come_back_and_lists_are_late() -> None:
    lines = _sound(5, "objects", ("back",)).lines
    for told in ("comes back", "times before"):
        assert any(line.endswith(told) for line in lines), told
    assert any("faults     stale" in line for line in _sound(2, "objects", ("stale", "crash")).lines)


def test_a_clock_that_sleeps_with_its_machine_is_caught() -> None:
    """Leases would be believed in that others saw end."""
    assert any(play(seed, "asleep", kind="objects", only=("sleep",)).violations for seed in range(60))
