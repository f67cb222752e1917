"""The table, the JSON and the plot of the measurements."""

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import build
from benchmarks.runner import Figures, Plan
from conformance import parts

TITLES = {
    "penstock": "Penstock",
    "kafka": f"Apache Kafka {parts.KAFKA_NEWEST}",
    "null": "null broker",
    "file": "null, to a file",
}
PEERS = {"kafka": "x Kafka", "null": "x null", "file": "x file"}


def median(figures: Figures, name: str) -> float | None:
    values = figures.by_broker.get(name)
    return statistics.median(values) if values else None


def advantage(figures: Figures, peer: str) -> float | None:
    """How many times better than the peer Penstock is: the median over rounds; below 1 it is worse."""
    ours, theirs = figures.by_broker.get("penstock"), figures.by_broker.get(peer)
    if not ours or not theirs:
        return None
    pairs = [(a, b) if figures.row.higher_is_better else (b, a) for a, b in zip(ours, theirs, strict=False)]
    return statistics.median(a / b if b else math.inf for a, b in pairs)


def ratios_of(figures: Figures) -> list[float | None]:
    return [advantage(figures, peer) for peer in PEERS]


def shortfalls(figures: Figures) -> list[str]:
    """The goals that the row misses, in words; empty when it meets them or has not been measured."""
    goal, missed = figures.row.goal, []
    if (kafka := advantage(figures, "kafka")) is not None and kafka < goal.than_kafka:
        missed.append(f"{kafka:.2f}x Apache Kafka, goal {goal.than_kafka:g}x")
    if (
        goal.than_null is not None
        and (null := advantage(figures, "null")) is not None
        and null < goal.than_null
    ):
        missed.append(f"{null:.2f} of the null broker, goal {goal.than_null:g}")
    ours = median(figures, "penstock")
    if goal.at_most is not None and ours is not None and ours > goal.at_most:
        missed.append(f"{ours:.3g} {figures.row.unit}, goal at most {goal.at_most:g}")
    return missed


def show(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def print_table(table: Sequence[Figures], console: Console) -> None:
    grid = Table(title="Penstock beside its peers", caption="x: times better, median of the rounds' ratios")
    grid.add_column("durability")
    grid.add_column("row")
    for title in ("unit", *TITLES.values(), *PEERS.values()):
        grid.add_column(title, justify="right")
    grid.add_column("verdict")
    for figures in table:
        durability = figures.row.key.split("/")[0]
        missed = shortfalls(figures)
        failed = figures.failures.get("penstock")
        verdict = "[red]failed" if failed else "[yellow]short" if missed else "[green]met"
        if not figures.by_broker.get("penstock") and not failed:
            verdict = "-"
        values = [show(median(figures, name)) for name in TITLES]
        ratios = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios_of(figures)]
        grid.add_row(durability, figures.row.label, figures.row.unit, *values, *ratios, verdict)
    console.print(grid)
    print_remarks(table, console)


def print_remarks(table: Sequence[Figures], console: Console) -> None:
    for figures in table:
        for name, why in figures.failures.items():
            console.print(f"[red]failed[/red]  {figures.row.key}, {TITLES[name]}: {why}", soft_wrap=True)
        missed = shortfalls(figures)
        if missed:
            where = f"; profile in {os.path.relpath(figures.profile)}" if figures.profile else ""
            console.print(
                f"[yellow]short[/yellow]   {figures.row.key}: {'; '.join(missed)}{where}", soft_wrap=True
            )


def machine() -> dict[str, Any]:
    model = "unknown"
    if os.path.exists("/proc/cpuinfo"):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def write_json(table: Sequence[Figures], plan: Plan, path: Path) -> None:
    rows = [
        {
            "key": figures.row.key,
            "label": figures.row.label,
            "unit": figures.row.unit,
            "higher_is_better": figures.row.higher_is_better,
            "figures": figures.by_broker,
            "broker_processor_seconds": figures.processor,
            "median": {name: median(figures, name) for name in TITLES},
            "times_better": {peer: advantage(figures, peer) for peer in PEERS},
            "shortfalls": shortfalls(figures),
            "failures": figures.failures,
            "profile": figures.profile and os.path.relpath(figures.profile, build.OUT),
        }
        for figures in table
    ]
    whole = {
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "kafka": parts.KAFKA_NEWEST,
        "rounds": plan.rounds,
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=2) + "\n")


# The plot: a line per row, a bar from 1 to the advantage over Kafka and a mark at that over the null broker.
LEFT, WIDTH, LINE, TOP = 330, 620, 20, 58
LEAST, MOST = 0.1, 100.0


def across(ratio: float) -> float:
    """Where a ratio lies on the logarithmic axis."""
    share = (math.log10(min(max(ratio, LEAST), MOST)) - math.log10(LEAST)) / math.log10(MOST / LEAST)
    return LEFT + WIDTH * share


def write_plot(table: Sequence[Figures], path: Path) -> None:
    lines = [figures for figures in table if advantage(figures, "kafka") is not None]
    height = TOP + LINE * len(lines) + 30
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 70}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="22" font-size="15">Times better than Apache Kafka {parts.KAFKA_NEWEST} (bars) '
        "and than a broker that keeps nothing (marks)</text>",
    ]
    for tick in (0.1, 0.3, 1, 3, 10, 30, 100):
        x = across(tick)
        colour = "#444" if tick == 1 else "#ddd"
        ends = f'x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 24}"'
        drawn.append(f'<line {ends} stroke="{colour}"/>')
        drawn.append(f'<text x="{x:.1f}" y="{TOP - 12}" text-anchor="middle" fill="#444">{tick:g}</text>')
    for index, figures in enumerate(lines):
        drawn += bar(figures, TOP + LINE * index)
    drawn.append("</svg>")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(drawn) + "\n")


def bar(figures: Figures, y: int) -> list[str]:
    kafka, null = advantage(figures, "kafka"), advantage(figures, "null")
    assert kafka is not None
    durability = figures.row.key.split("/")[0]
    name = figures.row.label if durability == "os" else f"{figures.row.label} ({durability})"
    start, end = sorted((across(1.0), across(kafka)))
    colour = "#c0392b" if kafka < 1 else "#e0a030" if shortfalls(figures) else "#2e7d5b"
    drawn = [
        f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
        f'<rect x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1):.1f}" height="{LINE - 7}" '
        f'fill="{colour}"/>',
        f'<text x="{LEFT + WIDTH + 8}" y="{y + 13}">{kafka:.2f}</text>',
    ]
    if null is not None:
        x = across(null)
        ends = f'x1="{x:.1f}" y1="{y + 1}" x2="{x:.1f}" y2="{y + LINE - 3}"'
        drawn.append(f'<line {ends} stroke="#111" stroke-width="3"/>')
    return drawn
