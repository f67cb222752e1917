"""All proofs in one list: what `make NAME`, `make nightly` and `.ci/run` run, in the order of the README.

    python -m conformance.proofs NAME ...      these, each step shown as it runs; the first that fails ends it
    python -m conformance.proofs --each-push   what every change must pass: short forms of some
    python -m conformance.proofs --nightly     all of them, whatever fails, and one report in Markdown

A proof is one or more steps, each a command that ends with 0 if it held, with 3 if it lacked a part that could not
be had, and with anything else if it failed. This module needs nothing but Python: it runs before there is a `.venv`.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "conformance" / "out" / "nightly"
NOT_RUN = 3
"""As in `conformance.parts`, which not every Python here can import yet."""
STEP_LIMIT_S = 3 * 3600.0
"""A step that takes longer hangs: the longest takes an hour."""
END_LIMIT_S = 60.0
FIGURES = 8
"""So many of the last lines of a step are in the report: proofs end with their figures."""
PROBLEMS_MAX = 40
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
"""pytest writes it."""
AGAIN_MAX = 3
"""A change that breaks something breaks more tests, or breaks them each time."""
TELLING = ("FAILED", "BROKEN", "brokers with", "not run", "skipped", "SKIPPED", "ERROR", "Traceback")
"""Lines that begin so are in the report, wherever they stand."""


@dataclass(frozen=True, slots=True)
class Proof:
    name: str
    steps: tuple[str, ...]
    short: tuple[str, ...] = ()
    """Minutes, not hours. None: the steps are short enough."""


def _python(*modules: str) -> tuple[str, ...]:
    return tuple(f"python -m {module}" for module in modules)


CHECK = ("make check",)
TEST = ("make test",)
DIFFERENTIAL = _python("conformance.differential")
EXACTLY_ONCE = _python("conformance.spark.exactly_once --kills 3 --seed 1")
CRASH = _python("conformance.crash --rounds 10")
STARTS = _python("conformance.cluster.starts --short --patience 6")
SIMULATION = _python("simulation --seeds 1000")
SICK = _python("conformance.sick --short")
UPGRADE = _python("conformance.upgrade --short")
TRANSACTIONS = _python("conformance.transactions --short", "conformance.transactions.chains --short")

SECURITY = _python(
    "conformance.security.clients --short",
    "conformance.security.tls",
    "conformance.security.handshakes --short",
    "conformance.security.tokens",
    "conformance.security.fuzz",
    "conformance.differential --secured --short",
)

EACH_PUSH = {
    "check": CHECK,
    "test": TEST,
    "crash": CRASH,
    "simulation": SIMULATION,
    "sick": SICK,
    "upgrade": UPGRADE,
    "starts": STARTS,
    "differential": DIFFERENTIAL,
    "exactly-once": EXACTLY_ONCE,
    "security": SECURITY,
    "transactions": TRANSACTIONS,
}

PROOFS = (
    Proof("check", CHECK),
    Proof("test", TEST),
    Proof("matrix", _python("conformance.matrix")),
    Proof("differential", DIFFERENTIAL),
    Proof("upstream", _python("conformance.upstream")),
    Proof("spark", _python("conformance.spark.connector")),
    Proof("exactly-once", _python("conformance.spark.exactly_once --kills 50"), EXACTLY_ONCE),
    Proof("bench-spark", _python("benchmarks.spark"), _python("benchmarks.spark --quick")),
    Proof("crash", _python("conformance.crash --rounds 1000"), CRASH),
    Proof("abuse", _python("conformance.abuse")),
    Proof(
        "security",
        _python(
            "conformance.security.clients",
            "conformance.security.tools",
            "conformance.security.peers",
            "conformance.security.spark",
            "conformance.security.tls",
            "conformance.security.handshakes",
            "conformance.security.tokens",
            "conformance.security.fuzz --cases 1000000",
            "conformance.security.quotas",
            "conformance.differential --secured",
            "conformance.security.shares",
        ),
        SECURITY,
    ),
    Proof(
        "groups",
        _python(
            "conformance.groups",
            "conformance.groups.rebalance",
            "conformance.groups.heartbeats",
            "conformance.groups.tools",
            "conformance.groups.etl",
        ),
        _python(
            "conformance.groups --short",
            "conformance.groups.rebalance --short",
            "conformance.groups.heartbeats --short",
            "conformance.groups.tools",
            "conformance.groups.etl --short",
        ),
    ),
    Proof(
        "transactions",
        _python(
            "conformance.transactions",
            "conformance.transactions.chains",
            "conformance.transactions.copier",
            "conformance.transactions.tables",
            "conformance.transactions.streams",
            "conformance.transactions.etl",
            "conformance.transactions.tools",
            "conformance.transactions.flink",
        ),
        (
            *TRANSACTIONS,
            *_python("conformance.transactions.streams --short", "conformance.transactions.tools"),
        ),
    ),
    Proof(
        "compaction",
        _python("conformance.compaction"),
        _python("conformance.compaction --updates 300000 --kills 1"),
    ),
    Proof(
        "pipelines",
        _python("conformance.pipelines", "conformance.pipelines.table"),
        _python(
            "conformance.pipelines --rounds 3 --few 1", "conformance.pipelines.table --rounds 2 --scan 0"
        ),
    ),
    Proof(
        "cluster",
        _python(
            "conformance.cluster",
            "conformance.cluster.starts",
            "conformance.cluster.topics --tools",
            "conformance.cluster.costs",
            "conformance.cluster.tools",
        ),
        (
            *_python("conformance.cluster --short"),
            *STARTS,
            *_python(
                "conformance.cluster.topics --short",
                "conformance.cluster.costs --short",
                "conformance.cluster.tools",
            ),
        ),
    ),
    Proof(
        "faults",
        _python("conformance.faults", "conformance.faults --s3 --rounds 15", "conformance.faults --broken"),
        _python("conformance.faults --short"),
    ),
    Proof(
        "simulation",
        (
            *_python("simulation --seeds 2000"),
            # Each must be caught.
            "for variant in $(python -m simulation --variants); do"
            " python -m simulation --seeds 500 --lines 5 --broken $variant || exit 1; done",
        ),
        SIMULATION,
    ),
    Proof("sick", _python("conformance.sick"), SICK),
    Proof(
        "soak",
        _python("conformance.soak --minutes 60 --out conformance/out"),
        _python("conformance.soak --minutes 4 --out conformance/out"),
    ),
    Proof("upgrade", _python("conformance.upgrade"), UPGRADE),
    Proof("console", _python("conformance.console"), _python("conformance.console --short")),
    Proof("s3", _python("conformance.s3")),
    Proof("etcd", _python("conformance.etcd")),
    Proof("package", _python("conformance.packages.wheel")),
    Proof("image", _python("conformance.packages.image")),
    Proof("chart", _python("conformance.packages.chart")),
    Proof("deploy", _python("conformance.packages.unit", "conformance.packages.rules")),
    Proof("pages", ("make docs", *_python("conformance.docs"))),
    Proof("bench", _python("benchmarks"), _python("benchmarks --quick")),
)
BY_NAME = {proof.name: proof for proof in PROOFS}


def environment() -> dict[str, str]:
    """`python` is the one that has what proofs need."""
    path = os.pathsep.join((str(ROOT / ".venv" / "bin"), os.environ.get("PATH", "")))
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}


def lacks_history() -> bool:
    """A clone without history has no last version to upgrade from."""
    asked = ["git", "rev-parse", "--is-shallow-repository"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return said.stdout.strip() == "true"


# In turn, until one fails.


def in_turn(steps: Iterable[str]) -> int:
    for step in steps:
        code = subprocess.run(["bash", "-c", step], cwd=ROOT, env=environment(), check=False).returncode
        if code:
            return code
    return 0


def again(code: int) -> int:
    """The code of the tests, after the few that failed were run once more, alone. What fails twice has failed.
    What holds then is named: a test that needs a quiet machine is a defect, but none of the change under test.
    """
    try:
        failed = sorted(json.loads(LAST_FAILED.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return code
    if not 0 < len(failed) <= AGAIN_MAX:
        return code
    print(f"== again, alone: {' '.join(failed)}", flush=True)
    command = [str(ROOT / ".venv" / "bin" / "pytest"), *failed]
    second = subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode
    for name in failed if second == 0 else ():
        print(f"FAILED once, and held alone: {name}", flush=True)
    return second


def each_push() -> int:
    LAST_FAILED.unlink(missing_ok=True)
    for name, steps in EACH_PUSH.items():
        if name == "upgrade" and lacks_history():
            print("== upgrade skipped: this clone has no history to take the last version from", flush=True)
            continue
        print(f"== {name}", flush=True)
        began = time.monotonic()
        code = in_turn(steps)
        if code and steps is TEST:
            code = again(code)
        print(f"== {name} {'failed after' if code else 'took'} {time.monotonic() - began:.0f} s", flush=True)
        if code:
            return 1
    return 0


# All of them, and a report.


@dataclass(slots=True)
class Outcome:
    step: str
    code: int
    seconds: float
    said: list[str]
    """Without empty lines."""

    @property
    def result(self) -> str:
        return {0: "held", NOT_RUN: "not run"}.get(self.code, "FAILED")

    def telling(self) -> list[str]:
        """The lines that a reader of the report wants: what is wrong or left out, and the figures at the end."""
        last = self.said[-FIGURES:]
        before = [line for line in self.said[:-FIGURES] if line.lstrip().startswith(TELLING)]
        return [*before[:PROBLEMS_MAX], *last]


@dataclass(slots=True)
class Section:
    name: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def result(self) -> str:
        results = {outcome.result for outcome in self.outcomes}
        if "FAILED" in results:
            return "FAILED"
        if "not run" in results:
            return "not run" if results == {"not run"} else "held in part"
        return "held"


def run_step(step: str, log: Path) -> Outcome:
    began = time.monotonic()
    with log.open("a", encoding="utf-8") as output:
        output.write(f"$ {step}\n")
        output.flush()
        start = output.tell()
        process = subprocess.Popen(
            ["bash", "-c", step],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(STEP_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = 1
        finally:
            end(process)
    with log.open(encoding="utf-8", errors="replace") as output:
        output.seek(start)
        # What librdkafka logs begins so.
        said = [line.rstrip() for line in output if line.strip() and not line.startswith("%")]
    seconds = time.monotonic() - began
    if seconds > STEP_LIMIT_S:
        said.append(f"FAILED: it did not end within {STEP_LIMIT_S / 3600:.0f} h")
    return Outcome(step, code, seconds, said)


def end(process: "subprocess.Popen[bytes]") -> None:
    """A step that still runs is asked to end what it started; what is left then is killed."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_LIMIT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def nightly(names: Sequence[str], short: bool, report: Path) -> int:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    report.parent.mkdir(parents=True, exist_ok=True)
    sections: list[Section] = []
    for name in names:
        proof = BY_NAME[name]
        section = Section(name)
        for step in (short and proof.short) or proof.steps:
            outcome = run_step(step, OUT / f"{name}.log")
            section.outcomes.append(outcome)
            last = outcome.said[-1] if outcome.said else ""
            print(f"{outcome.result}: {step} ({duration(outcome.seconds)}): {last[:160]}", flush=True)
        sections.append(section)
        # Whoever looks before the end, or after an end that nobody planned, sees what there is.
        report.write_text(markdown(sections, short, len(names) - len(sections)), encoding="utf-8")
    failed = [section.name for section in sections if section.result == "FAILED"]
    print(f"{len(sections) - len(failed)} of {len(sections)} did not fail; the report is {report}")
    return 1 if failed else 0


def markdown(sections: Sequence[Section], short: bool, to_come: int = 0) -> str:
    counts = [f"{sum(s.result == result for s in sections)} {result}" for result in RESULTS]
    lines = [
        f"# Proofs{', in their short forms' if short else ''}",
        "",
        f"{revision()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores: {', '.join(counts)}{f', {to_come} to come' if to_come else ''}.",
        "",
        "| proof | result | time | last line |",
        "|---|---|---|---|",
    ]
    for section in sections:
        said = section.outcomes[-1].said
        last = (said[-1] if said else "").strip().replace("|", "\\|")
        lines.append(f"| `{section.name}` | {section.result} | {duration(section.seconds)} | {last[:160]} |")
    for section in sections:
        lines += ["", f"## {section.name}: {section.result}, {duration(section.seconds)}"]
        for outcome in section.outcomes:
            lines += ["", f"`{outcome.step}`: {outcome.result}, {duration(outcome.seconds)}", "", "```text"]
            lines += [line.replace("```", "'''") for line in outcome.telling()]
            lines += ["```"]
    return "\n".join(lines) + "\n"


RESULTS = ("held", "held in part", "not run", "FAILED")


def duration(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def revision() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "a tree without git"


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.proofs", description=summary)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(BY_NAME)}")
    parser.add_argument("--each-push", action="store_true", help="what every change must pass")
    parser.add_argument("--nightly", action="store_true", help="all, or those named, and one report")
    parser.add_argument("--short", action="store_true", help="the short forms")
    parser.add_argument(
        "--report", type=Path, default=OUT.parent / "report.md", help="(default: %(default)s)"
    )
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - set(BY_NAME):
        parser.error(f"there is no proof {sorted(unknown)[0]!r}, only {', '.join(BY_NAME)}")
    if chosen.each_push:
        return each_push()
    if chosen.nightly:
        return nightly(chosen.names or list(BY_NAME), chosen.short, chosen.report)
    if not chosen.names:
        parser.error("name some proofs, or say --nightly or --each-push")
    for name in chosen.names:
        proof = BY_NAME[name]
        code = in_turn((chosen.short and proof.short) or proof.steps)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
