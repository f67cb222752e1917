"""The figures of a long run, whether each levels off, and a picture of them. Pure but for file sizes."""

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from pathlib import Path

KINDS = ("wal", "segments", "manifests", "meta")
GROWTH_MAX = 1.25
"""The last third may be so much above the middle one: loads and merges come in waves."""
SLACK = {"stored_bytes": 8 << 20, "files": 60, "descriptors": 40, "rss_bytes": 24 << 20}
"""Differences below these say nothing."""
STORED_PER_READABLE_MAX = 2.5
STORED_SHARE = 0.9
"""Of the samples of the second half, so many must keep the bound: a kill leaves work to be done."""


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    written_bytes: int
    """Acknowledged so far."""
    readable_bytes: int
    """Of all partitions together, as their leaders tell."""
    stored: Mapping[str, int]
    """By the first part of keys."""
    files: int
    descriptors: int
    rss_bytes: int

    @property
    def stored_bytes(self) -> int:
        return sum(self.stored.values())


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a store may hold beside twice what can be read."""

    delete_delay_s: float
    unsettled_bytes: int

    def bytes_for(self, rate: float) -> float:
        """`rate`: bytes written in a second. Deleted objects stay for the delay, in both forms: log and segment."""
        return 2 * rate * self.delete_delay_s + self.unsettled_bytes


@dataclass(slots=True)
class Verdict:
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def stored_sizes(folder: Path) -> tuple[dict[str, int], int]:
    """Bytes by kind, and the number of files; what goes away meanwhile is left out."""
    sizes = dict.fromkeys((*KINDS, "other"), 0)
    files = 0
    for where, _directories, names in os.walk(folder):
        kind = Path(where).relative_to(folder).parts[:1]
        for name in names:
            try:
                size = os.stat(os.path.join(where, name)).st_size
            except OSError:
                continue
            files += 1
            sizes[kind[0] if kind and kind[0] in KINDS else "other"] += size
    return sizes, files


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def judge(samples: Sequence[Sample], allowance: Allowance) -> Verdict:
    verdict = Verdict()
    if len(samples) < 9:
        verdict.problems.append(f"{len(samples)} samples are too few to judge")
        return verdict
    third = len(samples) // 3
    for name, slack in SLACK.items():
        middle = mean([getattr(sample, name) for sample in samples[third : 2 * third]])
        last = mean([getattr(sample, name) for sample in samples[2 * third :]])
        text = f"{name}: {_human(name, middle)} in the middle third, {_human(name, last)} in the last"
        verdict.lines.append(text)
        if last > GROWTH_MAX * middle and last > middle + slack:
            verdict.problems.append(f"{text}: it does not level off")
    verdict.problems += _space(samples, allowance, verdict.lines)
    return verdict


def _space(samples: Sequence[Sample], allowance: Allowance, lines: list[str]) -> list[str]:
    half = samples[len(samples) // 2 :]
    span = samples[-1].seconds - samples[0].seconds
    rate = (samples[-1].written_bytes - samples[0].written_bytes) / span if span else 0.0
    allowed = allowance.bytes_for(rate)
    ratios = sorted(sample.stored_bytes / max(sample.readable_bytes, 1) for sample in half)
    kept = [
        sample.stored_bytes <= STORED_PER_READABLE_MAX * sample.readable_bytes + allowed for sample in half
    ]
    share = sum(kept) / len(kept)
    text = (
        f"stored / readable: {ratios[len(ratios) // 2]:.2f} in the middle of the second half, at most "
        f"{ratios[-1]:.2f}; within {STORED_PER_READABLE_MAX} x readable + {allowed / 1e6:.0f} MB in {share:.0%} of it"
    )
    lines.append(text)
    return [] if share >= STORED_SHARE else [text]


def _human(name: str, value: float) -> str:
    return f"{value / 1e6:.1f} MB" if name.endswith("bytes") else f"{value:.0f}"


def to_csv(samples: Sequence[Sample]) -> str:
    out = io.StringIO()
    names = [one.name for one in fields(Sample) if one.name != "stored"]
    kinds = [*KINDS, "other"]
    writer = csv.writer(out)
    writer.writerow([*names, *kinds])
    for sample in samples:
        values = asdict(sample)
        writer.writerow([values[name] for name in names] + [sample.stored.get(kind, 0) for kind in kinds])
    return out.getvalue()


# -- the picture ------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, GAP = 640, 150, 80, 50, 48
COLOURS = ("#1f5f8b", "#c0392b", "#2e7d5b", "#e0a030", "#7d5ba6", "#888888")
Line = tuple[str, Callable[[Sample], float]]


def _stored(kind: str) -> Callable[[Sample], float]:
    return lambda sample: sample.stored.get(kind, 0) / 1e6


PANELS: tuple[tuple[str, tuple[Line, ...]], ...] = (
    (
        "megabytes in the store",
        (
            ("stored", lambda sample: sample.stored_bytes / 1e6),
            ("readable", lambda sample: sample.readable_bytes / 1e6),
            ("segments", _stored("segments")),
            ("logs", _stored("wal")),
        ),
    ),
    ("megabytes written", (("written", lambda sample: sample.written_bytes / 1e6),)),
    (
        "files and descriptors",
        (
            ("files", lambda sample: float(sample.files)),
            ("descriptors", lambda sample: float(sample.descriptors)),
        ),
    ),
    ("megabytes of memory", (("all brokers", lambda sample: sample.rss_bytes / 1e6),)),
)


def to_svg(samples: Sequence[Sample], title: str, kills: Sequence[float] = ()) -> str:
    """Lines over minutes; a thin grey line where a broker was killed."""
    height = TOP + len(PANELS) * (HEIGHT + GAP)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 110}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="24" font-size="15">{escape(title)}</text>',
    ]
    last = max((sample.seconds for sample in samples), default=1.0) or 1.0
    for number, (name, lines) in enumerate(PANELS):
        drawn += _panel(samples, name, lines, TOP + number * (HEIGHT + GAP), last, kills)
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _panel(
    samples: Sequence[Sample], name: str, lines: Sequence[Line], top: int, last: float, kills: Sequence[float]
) -> list[str]:
    most = max((value(sample) for sample in samples for _, value in lines), default=1.0) or 1.0
    bottom = top + HEIGHT

    def x(seconds: float) -> float:
        return LEFT + WIDTH * seconds / last

    drawn = [
        f'<text x="{LEFT}" y="{top - 6}">{escape(name)}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>',
        f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{most:.0f}</text>',
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{LEFT + WIDTH}" y="{bottom + 15}" text-anchor="end">{last / 60:.0f} min</text>',
    ]
    drawn += [
        f'<line x1="{x(at):.1f}" y1="{top}" x2="{x(at):.1f}" y2="{bottom}" stroke="#ddd"/>' for at in kills
    ]
    for number, (label, value) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{x(sample.seconds):.1f},{bottom - HEIGHT * value(sample) / most:.1f}" for sample in samples
        )
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        y = top + 14 + 16 * number
        drawn.append(f'<text x="{LEFT + WIDTH + 8}" y="{y}" fill="{colour}">{escape(label)}</text>')
    return drawn
