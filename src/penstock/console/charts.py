"""A line over time, as numbers that a template draws with SVG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.console.samples import Sample

WIDTH, HEIGHT = 720, 180
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 10, 24
_STEPS = (1, 2, 5)
GAP_SECONDS = 35.0
"""Between samples that are so far apart there is no line: nobody looked."""


class Chart(NamedTuple):
    lines: list[str]
    """Points of polylines; a gap in the samples ends one."""
    rules: list[tuple[float, int]]
    """Where a horizontal line stands, and its value."""
    times: list[tuple[float, str]]
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
        return round(LEFT + (time - start) / max(end - start, 1e-6) * (WIDTH - LEFT - RIGHT), 1)

    def down(lag: float) -> float:
        return round(HEIGHT - BOTTOM - lag / top * (HEIGHT - TOP - BOTTOM), 1)

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
        [(down(value), value) for value in (0, top // 2, top)] if top > 1 else [(down(0), 0), (down(1), 1)],
        [(across(start), _clock(start)), (across(end), _clock(end))],
        words,
    )


def _ceiling(most: int) -> int:
    """The next round number."""
    size = 1
    while True:
        for step in _STEPS:
            if step * size >= most:
                return step * size
        size *= 10


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"
