"""franz-go's TestGroupETL: chains of groups whose members come and go; each record is seen once and in order.

The test is the module's own, built from its source as published, and run with as many records as its authors
use. It counts as passed only if every part of it ran, passed, and compared the records that it read. A part
that was skipped, or that met a stale commit and then compared nothing, is a failure here.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from conformance import parts
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named

MODULE = "github.com/twmb/franz-go"
RECORDS = 500_000
RECORDS_SHORT = 10_000
TIMEOUT_S = 3600.0
TEST = "TestGroupETL"
PARTS_OF_A_TEST = (
    "",
    "/range",
    "/cooperative-sticky",
    "/range/848",
    "/sticky/848",
    "/cooperative-sticky/static",
    "/sticky/848/static",
)
# What the test logs when it met a stale commit and gave up comparing: a pass that shows nothing.
UNCHECKED = "skipping validation"
VERDICT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+) \((\S+)\)$", re.MULTILINE)


def build() -> Path:
    """The tests of franz-go's kgo package as one program, at the version that the client program has."""
    pinned = (parts.CLIENTS / "franz" / "go.mod").read_text()
    found = re.search(rf"{re.escape(MODULE)} (v\S+)", pinned)
    if found is None:
        raise parts.PartMissing("clients/franz/go.mod names no version of franz-go.")
    version = found[1]
    program = parts.PARTS / "bin" / f"kgo-{version}.test"
    if not program.exists():
        source = parts.go_module(MODULE, version) / "pkg" / "kgo"
        program.parent.mkdir(parents=True, exist_ok=True)
        command = ["go", "test", "-c", "-o", str(program), "."]
        built = subprocess.run(
            command, cwd=source, capture_output=True, text=True, timeout=parts.FETCH_TIMEOUT_S, check=False
        )
        if built.returncode != 0:
            raise parts.PartMissing(f"the tests of {MODULE} {version} do not build: {built.stderr.strip()}")
    return program


def run(
    bootstrap: str,
    program: Path,
    records: int,
    timeout_s: float,
    test: str = TEST,
    choices: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], list[str], str]:
    """How long each part that passed took, what failed, and what was printed. `choices`: more of its variables."""
    environment = os.environ | {
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(records),
        "KGO_LOG_LEVEL": "none",
        **(choices or {}),
    }
    limit = f"-test.timeout={int(timeout_s)}s"
    command = [str(program), f"-test.run=^{test}$", "-test.v", "-test.count=1", limit]
    process = subprocess.Popen(
        command,
        cwd=parts.PARTS,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s + 30)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    verdicts = {name: (verdict, took) for verdict, name, took in VERDICT.findall(output)}
    passed, failures = {}, []
    for part in PARTS_OF_A_TEST:
        verdict, took = verdicts.get(test + part, ("no verdict", ""))
        if verdict == "PASS":
            passed[test + part] = took
        else:
            failures.append(f"{test}{part}: {verdict}")
    if UNCHECKED in output:
        failures.append("the test met a stale commit and compared nothing")
    if process.returncode != 0:
        failures.append(f"the test program ended with {process.returncode}")
    return passed, failures, output


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.groups.etl", description=__doc__.splitlines()[0]
    )
    add_against(parser)
    parser.add_argument("--records", type=int, help=f"records in the chain (default: {RECORDS:,})")
    parser.add_argument("--short", action="store_true", help=f"{RECORDS_SHORT:,} records, for each push")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS")
    options = parser.parse_args()
    records = options.records or (RECORDS_SHORT if options.short else RECORDS)
    try:
        program = build()
        with interrupted_cleanly(), server_named(options.against) as server:
            began = time.monotonic()
            passed, failures, output = run(server.bootstrap, program, records, options.timeout)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except ServerFailed as why:
        print(f"group_etl: {why}", file=sys.stderr)
        return 2
    if failures:
        print("\n".join(output.splitlines()[-60:]))
    for test, took in passed.items():
        print(f"passed {test} {took}")
    for failure in failures:
        print(f"FAILED {failure}")
    took_s = time.monotonic() - began
    print(
        f"TestGroupETL against {server.name}: {records:,} records, {took_s:.0f} s, {len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
