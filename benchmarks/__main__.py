"""`python -m benchmarks`: measure, print the table, write the JSON and the plot to `benchmarks/out`.

It ends with 1 if a broker failed, or if a record that was read back differed from the acknowledged one. A row
that misses its goal is reported as short. With --profile its profile, which says where the time goes, is
written beside it.
"""

import argparse
import time

from conformance.parts import PartMissing, not_run
from conformance.server import interrupted_cleanly
from rich.console import Console

from benchmarks import build, report, runner, scenarios


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round of each scenario")
    parser.add_argument("--rounds", type=int, help="rounds of each scenario (5; with --quick 1)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="only rows that contain a word"
    )
    parser.add_argument(
        "--brokers", default=",".join(runner.NAMES), help="which, separated by commas (%(default)s)"
    )
    parser.add_argument(
        "--durability",
        default="os,fsync,secured",
        help="which, separated by commas; secured: as os, with TLS and logins (%(default)s)",
    )
    parser.add_argument("--profile", action="store_true", help="one more run of each scenario under py-spy")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and end")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    size = scenarios.QUICK if chosen.quick else scenarios.Size()
    plan = runner.Plan(
        size=size,
        rounds=chosen.rounds or (1 if chosen.quick else 5),
        names=[name for name in runner.NAMES if name in chosen.brokers.split(",")],
        durabilities=[name for name in ("os", "fsync", "secured") if name in chosen.durability.split(",")],
        only=chosen.only,
        profiled=chosen.profile,
    )
    if chosen.list:
        for durability in plan.durabilities:
            for scenario in scenarios.scenarios(durability, size):
                if plan.wants(scenario):
                    print(*(row.key for row in scenario.rows), sep="\n")
        return 0
    console = Console(width=None if Console().is_terminal else 160)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.0f} s[/dim]  {text}", highlight=False)

    try:
        with interrupted_cleanly():
            table = runner.run(plan, say)
    except PartMissing as why:
        return not_run(why)
    if not table:
        console.print("no row contains that word; --list prints their names")
        return 1
    report.print_table(table, console)
    report.write_json(table, plan, build.OUT / "results.json")
    report.write_plot(table, build.OUT / "results.svg")
    console.print(f"figures in {build.OUT.name}/results.json, plot in {build.OUT.name}/results.svg")
    return 1 if any(figures.failures for figures in table) else 0


if __name__ == "__main__":
    raise SystemExit(main())
