"""One of several processes that run seeds: every so many of them, an outcome a line."""

import sys

import msgspec

from simulation.play import play


def main() -> None:
    first, end, step, broken, seconds, kind = sys.argv[1:]
    for seed in range(int(first), int(end), int(step)):
        outcome = play(seed, broken or None, float(seconds) if seconds else None, kind or None)
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
