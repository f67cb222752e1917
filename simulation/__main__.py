"""Run seeds; say which one failed, and what happened before.

python -m simulation --seeds 1000            seeds 0 to 999, on as many processes as there are cores
python -m simulation --seed 17               one seed again, exactly as it was, with all that happened
python -m simulation --seeds 200 --broken fencing
                                             brokers broken on purpose, until they are caught
python -m simulation --seed 17 --only power,sync
                                             with these faults alone
python -m simulation --seeds 1000 --digests FILE
                                             what each seed did, to compare with another run
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from simulation.broken import VARIANTS
from simulation.faults import ALL_KINDS
from simulation.play import LINES_SHOWN, play, play_all
from simulation.scene import Outcome
from simulation.worlds import KINDS

LINES_ALL = 10**7
TELL_EACH = 1000
"""After so many seeds a line says how far it is."""
INTERRUPTED = 130


def main() -> int:
    arguments = _arguments()
    if arguments.variants:
        print(*VARIANTS)
        return 0
    if arguments.seed is not None:
        return _replay(arguments)
    tally = _Tally(arguments)
    interrupted = False
    try:
        tally.play()
    except KeyboardInterrupt:
        interrupted = True
    if arguments.digests is not None:
        arguments.digests.write_text("".join(tally.digests[seed] for seed in sorted(tally.digests)))
    print(tally)
    if interrupted:
        return INTERRUPTED
    if arguments.broken:
        print(f"brokers with {arguments.broken} broken were {'caught' if tally.failed else 'NOT caught'}")
        return 0 if tally.failed else 1
    return 1 if tally.failed else 0


class _Tally:
    """Many seeds, and what they came to so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._began = time.monotonic()
        self._done = self._acknowledged = self._reads = self._commits = self._steps = 0
        self._virtual = 0.0
        self.failed = 0
        self.digests: dict[int, str] = {}

    def play(self) -> None:
        arguments = self._arguments
        seeds = range(arguments.first, arguments.first + arguments.seeds)
        options = (arguments.broken, arguments.seconds, arguments.store, arguments.only)
        for outcome in play_all(seeds, arguments.jobs, *options):
            self._count(outcome)
            if outcome.violations:
                if (
                    arguments.broken
                    and play(outcome.seed, None, *options[1:3], only=arguments.only).violations
                ):
                    print(f"seed {outcome.seed} fails with sound brokers as well, and does not count")
                    continue
                self.failed += 1
                _show(outcome, arguments.lines)
                if arguments.broken or self.failed >= arguments.failures:
                    return
            if arguments.minutes and time.monotonic() - self._began > arguments.minutes * 60:
                return
            if self._done % TELL_EACH == 0 and self._done < len(seeds):
                print(self, flush=True)

    def _count(self, outcome: Outcome) -> None:
        self._done += 1
        self._acknowledged += outcome.acknowledged
        self._reads += outcome.reads
        self._commits += outcome.commits
        self._steps += outcome.steps
        self._virtual += outcome.seconds
        self.digests[outcome.seed] = f"{outcome.seed} {outcome.steps} {outcome.digest}\n"

    def __str__(self) -> str:
        return (
            f"{self._done} seeds in {time.monotonic() - self._began:.0f} s: "
            f"{self._virtual / 3600:.1f} simulated hours, {self._steps} steps, "
            f"{self._acknowledged} records acknowledged, {self._reads} read, {self._commits} commits; "
            f"{self.failed} seeds failed"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed, and show all that happened")
    parser.add_argument("--seconds", type=float, help="simulated seconds during which things go wrong")
    parser.add_argument("--store", choices=KINDS, help="not whatever the seed says")
    parser.add_argument("--only", type=_kinds, default=(), help="these kinds of faults, with commas between")
    parser.add_argument("--minutes", type=float, help="begin nothing more after so many real minutes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many failing seeds")
    parser.add_argument(
        "--lines", type=int, default=LINES_SHOWN, help="lines shown of what happened before a failure"
    )
    parser.add_argument("--digests", type=Path, help="write a line for each seed here: its steps, its hash")
    parser.add_argument("--broken", choices=sorted(VARIANTS), help="brokers with something wrong with them")
    parser.add_argument("--variants", action="store_true", help="name all that --broken knows")
    return parser.parse_args()


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    unknown = set(kinds) - ALL_KINDS
    if unknown:
        raise argparse.ArgumentTypeError(f"{sorted(unknown)} are not among {sorted(ALL_KINDS)}")
    return kinds


def _replay(arguments: argparse.Namespace) -> int:
    outcome = play(
        arguments.seed,
        arguments.broken,
        arguments.seconds,
        arguments.store,
        LINES_ALL,
        only=arguments.only,
    )
    for line in outcome.lines:
        print(line)
    for violation in outcome.violations:
        print(violation)
    print(f"seed {outcome.seed}: {outcome.steps} steps, trace {outcome.digest}")
    return 1 if outcome.violations else 0


def _show(outcome: Outcome, count: int) -> None:
    print(f"seed {outcome.seed} failed; what happened before:")
    for line in outcome.lines[-count:] if count else ():
        print(f"  {line}")
    for violation in outcome.violations:
        print(f"seed {outcome.seed}: {violation}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
