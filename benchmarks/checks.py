"""What checksums and checks cost on the hot path: this tree beside an older revision, in turns, in one run.

    python -m benchmarks.checks --against HEAD~20            both as they are, durability=os
    python -m benchmarks.checks --against v0.9 --rounds 12   more rounds, a narrower spread

`git archive` unpacks the revision. Each round measures every load on a fresh broker of one tree and then of
the other, and the next round begins with the other. It compares the broker's processor time for a request
(and for a megabyte read again from the store), which a busy machine disturbs less than throughput. Throughput
is printed beside it. A ratio above 1 means that this tree costs more.

Ends with 1 if a load costs more than the limit beyond doubt: when three rounds of four say so.
"""

import argparse
import contextlib
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.parts import ROOT, PartMissing, not_run
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.target import Penstock

from benchmarks.load import measure

LIMIT = 1.03
LOADS = ("1K-d1", "1K-8x5", "16K-d5", "128K-d5", "1M-d5")
WARM_S = 0.7
REREADS = 2
COSTS = {"broker_cpu_us_per_request": "produce", "reread_cpu_us_per_megabyte": "read from the store"}
RATES = {"broker_cpu_us_per_request": "megabytes_per_second", "reread_cpu_us_per_megabyte": "reread_megabytes_per_second"}  # fmt: skip


class Tree(Penstock):
    """The broker of one source tree."""

    def __init__(self, name: str, source: Path, settings: dict[str, str]) -> None:
        super().__init__(settings)
        self.name = name
        self.source = source

    def command(self) -> list[str]:
        return ["env", f"PYTHONPATH={self.source}", *super().command()]


@dataclass(slots=True)
class Row:
    """One load and one cost of it: a pair of figures for each round, this tree's first."""

    load: str
    cost: str
    costs: list[tuple[float, float]] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return sorted(ours / theirs for ours, theirs in self.costs)

    def quartiles(self) -> tuple[float, float, float]:
        return quartiles(self.ratios)

    def line(self, limit: float) -> str:
        low, middle, high = self.quartiles()
        ours, theirs = (statistics.median(side) for side in zip(*self.costs, strict=True))
        faster = statistics.median(ours / theirs for ours, theirs in self.rates)
        return (
            f"{self.load:8} {COSTS[self.cost]:20} {theirs:9.1f} -> {ours:9.1f} us   cost x {middle:.3f} "
            f"({low:.3f} to {high:.3f})   rate x {faster:.3f}   {verdict(self.ratios, limit)}"
        )


def quartiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    if len(ratios) < 2:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def verdict(ratios: Sequence[float], limit: float) -> str:
    low, middle, _high = quartiles(ratios)
    if low > limit:
        return "DEARER"
    return "within" if middle <= limit else "undecided"


def unpack(revision: str, folder: Path) -> Path:
    """The sources of a revision."""
    done = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise PartMissing(f"git has no {revision}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def run(name: str, source: Path, settings: dict[str, str], load: str, seconds: float) -> dict[str, Any]:
    """One load on a broker of its own: what another run left to settle, and how memory happens to lie in one
    process, is nobody's cost."""
    with Tree(name, source, settings) as tree:
        extra = (f"--warm={WARM_S}", f"--reread={REREADS}")
        return measure(tree.bootstrap, load, seconds, tree.pid, extra)


def compare(
    sources: Mapping[str, Path], settings: dict[str, str], rounds: int, seconds: float, loads: Sequence[str]
) -> list[Row]:
    rows = [Row(load, cost) for load in loads for cost in COSTS]
    for number in range(rounds):
        order = sorted(sources, reverse=bool(number % 2))
        for load in loads:
            found = {name: run(name, sources[name], settings, load, seconds) for name in order}
            ours, theirs = (found[name] for name in sources)
            for row in rows:
                # The system counts processor time in hundredths of a second: of little work it may count none.
                if row.load == load and ours[row.cost] and theirs[row.cost]:
                    row.costs.append((ours[row.cost], theirs[row.cost]))
                    rate = RATES[row.cost]
                    row.rates.append((ours[rate], theirs[rate]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return [row for row in rows if row.costs]


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checks", description=summary)
    parser.add_argument(
        "--against", required=True, metavar="REVISION", help="the older tree, as git names it"
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="each load in each round (default: 2)")
    parser.add_argument("--durability", default="os", choices=("os", "fsync"))
    parser.add_argument("--limit", type=float, default=LIMIT, help="the ratio allowed (default: %(default)s)")
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"default: {' '.join(LOADS)}")
    chosen = parser.parse_args(arguments)
    settings = {"durability": chosen.durability}
    with interrupted_cleanly(), contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-tree-")))
        try:
            old = unpack(chosen.against, folder)
            sources = {"this tree": ROOT / "src", chosen.against: old}
            loads = chosen.loads or LOADS
            rows = compare(sources, settings, chosen.rounds, chosen.seconds, loads)
        except PartMissing as why:
            return not_run(why)
        except (ServerFailed, RuntimeError) as why:
            print(f"checks: {why}", file=sys.stderr)
            return 2
    for row in rows:
        print(row.line(chosen.limit))
    together = statistics.geometric_mean(ratio for row in rows for ratio in row.ratios)
    print(f"all loads: cost x {together:.3f} against {chosen.against}, allowed {chosen.limit:.2f}")
    return 1 if any(verdict(row.ratios, chosen.limit) == "DEARER" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
