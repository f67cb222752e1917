"""A line over time, as numbers that a template draws with SVG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.console.samples import Sample

WIDTH, HEIGHT = 1000, 200
_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
GAP_SECONDS = 35.0
"""Between samples that are so far apart there is no line: nobody looked."""


class Chart(NamedTuple):
    lines: list[str]
    """Points of polylines; a gap in the samples ends one."""
    top: int
    """What stands at its upper edge; 0 is at the lower one."""
    times: tuple[str, str]
    """At its left and right edge."""
    words: str
    """What a reader who does not see it is told."""
    width: int = WIDTH
    height: int = HEIGHT


def lag_chart(samples: Sequence[Sample]) -> Chart | None:
    """None: there are not two samples yet."""
    known = [(one.time, one.lag) for one in samples if one.lag is not None]
    if len(known) < 2:
        return None
    start, end = known[0][0], known[-1][0]
    most = max(lag for _, lag in known)
    top = _ceiling(most)

    def across(time: float) -> float:
        return round((time - start) / max(end - start, 1e-6) * WIDTH, 1)

    def down(lag: float) -> float:
        return round(HEIGHT - lag / top * HEIGHT, 1)

    lines: list[list[str]] = [[]]
    before = start
    for time, lag in known:
        if time - before > GAP_SECONDS and lines[-1]:
            lines.append([])
        lines[-1].append(f"{across(time)},{down(lag)}")
        before = time
    now = known[-1][1]
    words = (
        f"Lag from {_clock(start)} to {_clock(end)} UTC: {known[0][1]} at first, at most {most}, {now} now."
    )
    return Chart(
        [" ".join(points) for points in lines if len(points) > 1],
        top,
        (_clock(start), _clock(end)),
        words,
    )


def _ceiling(most: int) -> int:
    """The next round number."""
    size = 10
    while size * _STEPS[-1] < most:
        size *= 10
    return next(int(step * size) for step in _STEPS if step * size >= most)


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"
