"""One of several processes that run seeds: every so many of them, an outcome a line.

To take a world apart costs a tenth of what running it does. So a child process runs a few seeds at a time,
and ends without taking them apart.
"""

import os
import sys

import msgspec

from simulation.play import play, prepare

SEEDS_PER_CHILD = 12
"""Each leaves some ten megabytes."""


def main() -> None:
    first, end, step, *options = sys.argv[1:]
    seeds = range(int(first), int(end), int(step))
    prepare()
    for at in range(0, len(seeds), SEEDS_PER_CHILD):
        child = os.fork()
        if not child:
            _run(seeds[at : at + SEEDS_PER_CHILD], *options)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            sys.exit(f"a process that ran seeds from {seeds[at]} on ended with {status}")


def _run(seeds: range, broken: str, seconds: str, kind: str, only: str) -> None:
    status = 1
    try:
        for seed in seeds:
            outcome = play(
                seed,
                broken or None,
                float(seconds) if seconds else None,
                kind or None,
                tidy=False,
                only=tuple(only.split(",")) if only else (),
            )
            sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
            sys.stdout.buffer.flush()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
