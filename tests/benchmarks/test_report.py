"""What the table says follows from the figures: paired ratios, the direction that is better, missed goals."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.runner import Figures, Plan
from benchmarks.scenarios import QUICK, Goal, Row, scenarios

from benchmarks import profile, report


def figures(
    higher_is_better: bool, penstock: list[float], kafka: list[float], null: list[float], goal: Goal
) -> Figures:
    row = Row("os/some/row", "some row", "MB/s", higher_is_better, goal)
    return Figures(row, {"penstock": penstock, "kafka": kafka, "null": null})


def test_the_advantage_is_the_median_of_the_ratios_of_rounds() -> None:
    # The machine was slow in the second round, for all alike: no round's ratio shows it.
    measured = figures(True, [100, 10, 120], [50, 5, 40], [200, 20, 240], Goal())
    assert report.advantage(measured, "kafka") == 2
    assert report.advantage(measured, "null") == 0.5


def test_a_lower_figure_is_better_where_the_row_says_so() -> None:
    measured = figures(False, [2.0], [6.0], [1.0], Goal())
    assert report.advantage(measured, "kafka") == 3
    assert report.advantage(measured, "null") == 0.5


@pytest.mark.parametrize(
    ("goal", "missed"),
    [
        (Goal(), []),
        (Goal(than_kafka=2.0), []),
        (Goal(than_kafka=2.5), ["2.00x Apache Kafka, goal 2.5x"]),
        (Goal(than_null=0.9), ["0.50 of the null broker, goal 0.9"]),
        (Goal(at_most=99), ["100 MB/s, goal at most 99"]),
    ],
)
def test_each_missed_goal_is_named(goal: Goal, missed: list[str]) -> None:
    assert report.shortfalls(figures(True, [100], [50], [200], goal)) == missed


def test_a_row_that_nobody_measured_is_neither_met_nor_missed() -> None:
    assert report.shortfalls(figures(True, [], [50], [], Goal(than_kafka=9, than_null=9, at_most=9))) == []


def test_the_plot_and_the_json_can_be_read_back(tmp_path: Path) -> None:
    table = [figures(True, [100], [50], [200], Goal(than_null=0.9))]
    report.write_plot(table, tmp_path / "plot.svg")
    ElementTree.fromstring((tmp_path / "plot.svg").read_text())
    report.write_json(table, Plan(QUICK, rounds=1), tmp_path / "results.json")
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert row["times_better"] == {"kafka": 2.0, "null": 0.5, "file": None}
    assert row["shortfalls"] == ["0.50 of the null broker, goal 0.9"]


def test_every_row_has_a_key_of_its_own() -> None:
    keys = [
        row.key
        for durability in ("os", "fsync", "secured")
        for scenario in scenarios(durability, QUICK)
        for row in scenario.rows
    ]
    assert len(keys) == len(set(keys))


def test_a_profile_adds_up_the_lines_of_a_function_and_leaves_out_waiting() -> None:
    table = profile.tabulate(
        "main (a.py:1);hot (a.py:7) 6\nmain (a.py:1);hot (a.py:9) 3\nmain (a.py:2) 1\n"
        "run (threading.py:9);_worker (concurrent/futures/thread.py:81) 50\n"
    )
    assert " 90.0%   90.0%  hot (a.py)" in table
    assert " 10.0%  100.0%  main (a.py)" in table
