"""Tests that client projects ship themselves, run as they are against a broker of ours.

A suite counts as passed only if every test that was chosen ran and passed: one that was skipped, or that gave up its
checks and still called itself passed, is a failure here.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from conformance import parts
from conformance.server import Server, ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named

FRANZ_GO = ("github.com/twmb/franz-go", "v1.22.2")
ETL_RECORDS = 500_000
ETL_RECORDS_SHORT = 10_000
ETL_TESTS = (
    "TestGroupETL",
    "TestGroupETL/range",
    "TestGroupETL/cooperative-sticky",
    "TestGroupETL/range/848",
    "TestGroupETL/sticky/848",
    "TestGroupETL/cooperative-sticky/static",
    "TestGroupETL/sticky/848/static",
)
# What the test logs when it met a stale commit and gave up comparing: a pass that shows nothing.
ETL_UNCHECKED = "skipping validation"
GO_VERDICT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+) \((\S+)\)$")


@dataclass(frozen=True, slots=True)
class Options:
    short: bool
    records: int | None
    timeout_s: float
    verbose: bool


@dataclass(slots=True)
class Outcome:
    """What a suite's own runner said."""

    passed: dict[str, str] = field(default_factory=dict)
    """Tests that passed, and how long each took."""
    failures: list[str] = field(default_factory=list)
    output: str = ""


def franz_group_etl(server: Server, options: Options) -> Outcome:
    """franz-go's TestGroupETL: chains of groups whose members join and leave, each record seen once and in order."""
    records = options.records or (ETL_RECORDS_SHORT if options.short else ETL_RECORDS)
    program = _kgo_tests()
    environment = os.environ | {
        "KGO_SEEDS": server.bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(records),
        "KGO_LOG_LEVEL": "none",
    }
    limit = f"-test.timeout={int(options.timeout_s)}s"
    command = [str(program), "-test.run=^TestGroupETL$", "-test.v", "-test.count=1", limit]
    outcome = Outcome()
    code, outcome.output = _run(command, parts.PARTS, environment, options.timeout_s + 30)
    verdicts: dict[str, tuple[str, str]] = {}
    for line in outcome.output.splitlines():
        found = GO_VERDICT.match(line)
        if found:
            verdicts[found[2]] = (found[1], found[3])
    for test in ETL_TESTS:
        verdict, took = verdicts.get(test, ("no verdict", ""))
        if verdict == "PASS":
            outcome.passed[test] = took
        else:
            outcome.failures.append(f"{test}: {verdict}")
    if ETL_UNCHECKED in outcome.output:
        outcome.failures.append("TestGroupETL met a stale commit and compared nothing")
    if code != 0:
        outcome.failures.append(f"the test program ended with {code}")
    print(f"TestGroupETL ran with {records:,} records a level")
    return outcome


def _kgo_tests() -> Path:
    """The tests of franz-go's kgo package as one program, built from the module's own source."""
    module, version = FRANZ_GO
    program = parts.PARTS / "bin" / f"kgo-{version}.test"
    if not program.exists():
        source = parts.go_module(module, version) / "pkg" / "kgo"
        program.parent.mkdir(parents=True, exist_ok=True)
        built = subprocess.run(
            ["go", "test", "-c", "-o", str(program), "."],
            cwd=source,
            capture_output=True,
            text=True,
            timeout=parts.FETCH_TIMEOUT_S,
            check=False,
        )
        if built.returncode != 0:
            raise parts.PartMissing(f"the tests of {module} {version} do not build: {built.stderr.strip()}")
    return program


def _run(command: list[str], where: Path, environment: dict[str, str], timeout_s: float) -> tuple[int, str]:
    """Run a suite in a process group of its own, so that what it started ends with it."""
    process = subprocess.Popen(
        command,
        cwd=where,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\nended after {timeout_s:.0f} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.returncode, output


SUITES: dict[str, Callable[[Server, Options], Outcome]] = {"franz-group-etl": franz_group_etl}


def run(server: Server, names: list[str], options: Options) -> int:
    """How many failures there were."""
    count = 0
    for name in names:
        began = time.monotonic()
        outcome = SUITES[name](server, options)
        for test, took in outcome.passed.items():
            print(f"passed {test} {took}")
        if outcome.failures or options.verbose:
            print("\n".join(outcome.output.splitlines()[-200:]))
        for failure in outcome.failures:
            print(f"FAILED {name}: {failure}")
        passed, failed = len(outcome.passed), len(outcome.failures)
        print(f"{name}: {passed} passed, {failed} failures ({time.monotonic() - began:.0f} s)", flush=True)
        count += failed or int(not passed)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.upstream", description=__doc__.splitlines()[0])
    add_against(parser)
    parser.add_argument("--suite", nargs="+", choices=SUITES, help="which (default: all)")
    parser.add_argument("--short", action="store_true", help="smaller, for each push")
    parser.add_argument("--records", type=int, help=f"records of TestGroupETL (default: {ETL_RECORDS:,})")
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS", help="for each suite")
    parser.add_argument("--verbose", action="store_true", help="show what the suites print")
    given = parser.parse_args()
    options = Options(given.short, given.records, given.timeout, given.verbose)
    try:
        with interrupted_cleanly(), server_named(given.against) as server:
            return 1 if run(server, given.suite or list(SUITES), options) else 0
    except (parts.PartMissing, ServerFailed) as why:
        print(f"upstream: {why}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
