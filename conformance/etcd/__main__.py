"""Penstock with its metadata log and leases in a real etcd of three members, whose leader is killed and paused.

    suite      the behaviour suite of stores, against etcd
    log        four writers of one metadata log, while the leader of etcd is killed again and again: every
               change that was answered is in it once, and all read the same
    access     users and passwords; an etcd whose space is used up
    cluster    three brokers under the clients and the checker of `conformance.faults`; topics are created
               through every broker meanwhile. Nothing lost, nothing twice, and all brokers agree
    copies     a broker on a copy of the cluster's bucket, which names the etcd of the original, is refused

etcd is built by Go, once. Everything runs on loopback.
"""

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from conformance import parts
from conformance.etcd.access import run_access
from conformance.etcd.copies import run_copies
from conformance.etcd.outages import run_cluster
from conformance.etcd.race import Race
from conformance.etcd.server import Etcd
from conformance.server import ServerFailed, interrupted_cleanly

SUITE = "tests/storage/test_store_behaviour.py"


def run_suite(etcd: Etcd) -> bool:
    environment = {**os.environ, "PENSTOCK_TEST_STORE": etcd.url}
    command = [sys.executable, "-m", "pytest", "-q", SUITE, "-k", "remote"]
    return subprocess.run(command, env=environment, cwd=parts.ROOT, check=False).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.etcd", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=10, help="deaths of the leader under one log (default: 10)"
    )
    parser.add_argument(
        "--rounds", type=int, default=12, help="rounds of faults under a cluster (default: 12)"
    )
    parser.add_argument(
        "--only", choices=["suite", "log", "access", "cluster", "copies"], help="one part of it"
    )
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    problems: list[str] = []
    steps: list[tuple[str, Callable[[Etcd], list[str]]]] = [
        ("suite", lambda etcd: [] if run_suite(etcd) else ["the behaviour suite failed"]),
        ("log", lambda etcd: asyncio.run(Race(etcd).run(chosen.kills))),
        ("access", lambda _etcd: run_access()),
        ("cluster", lambda etcd: run_cluster(etcd, chosen.rounds, chosen.seed)),
        ("copies", run_copies),
    ]
    with interrupted_cleanly():
        try:
            for name, step in steps:
                if chosen.only not in (None, name):
                    continue
                with Etcd() as etcd:
                    problems += [f"{name}: {problem}" for problem in step(etcd)]
        except parts.PartMissing as why:
            return parts.not_run(why)
        except (AssertionError, ServerFailed) as error:
            problems.append(str(error))
    for problem in problems[:20]:
        print(f"FAILED: {problem}")
    print(f"{0 if problems else 1} passed, {1 if problems else 0} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
