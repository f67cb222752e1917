"""Two trees are compared round by round; one slow round decides nothing."""

from benchmarks.checks import Row, verdict


def test_what_costs_more_in_most_rounds_is_dearer() -> None:
    assert verdict([1.05, 1.06, 1.07, 1.08], 1.03) == "DEARER"


def test_one_disturbed_round_decides_nothing() -> None:
    assert verdict([0.99, 1.0, 1.01, 1.8], 1.03) == "within"
    assert verdict([0.99, 1.0, 1.10, 1.8], 1.03) == "undecided"


def test_a_row_shows_costs_spread_and_rate() -> None:
    row = Row(
        "1K-d1", "broker_cpu_us_per_request", [(102.0, 100.0), (99.0, 100.0)], [(10.0, 10.0), (11.0, 10.0)]
    )
    assert row.ratios == [0.99, 1.02]
    line = row.line(1.03)
    assert "cost x 1.005" in line and "rate x 1.050" in line and line.endswith("within")
