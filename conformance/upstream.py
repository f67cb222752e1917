"""Run the integration tests that client libraries ship in their own source packages against a running broker.

Every test of the chosen files is either selected or listed with the reason why it is not. Tests that a
package does not ship cannot be run, and the report says so.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.metadata import version as installed_version
from pathlib import Path

from conformance import parts
from conformance.server import Server, ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named

ETL = "run by conformance.transactions.etl, with its chaos"
LOGIN = "needs a listener with a login, which is not started here; conformance.security.clients logs in"
OWN_BROKERS = (
    "all its tests: they start Apache Kafka themselves; conformance.security.clients logs in as they do"
)
TIMEOUT_S = 1500
# The release of Kafka that the advertised versions must be taken for.
TAKEN_FOR = "4.3"
FRANZ_GO = "github.com/twmb/franz-go"
KAFKA_GO = "github.com/segmentio/kafka-go", "v0.4.51"
WITH_RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}

SERVICE = """class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
"""


@dataclass
class Outcome:
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class Suite(ABC):
    """The tests of one library."""

    name: str
    reasons: dict[str, str]
    """Why tests are left out, by pattern of their names."""

    settings: dict[str, str] = {}  # noqa: RUF012
    """Settings that the library's own fixtures give their brokers."""

    node_id = 0
    """The id that its tests expect of their broker."""

    def __init__(self, only: str) -> None:
        self.only = only

    def split(self, tests: list[str]) -> tuple[list[str], dict[str, str]]:
        """The tests to run, and why the others are not."""
        chosen, left = [], {}
        for test in tests:
            reason = next((why for pattern, why in self.reasons.items() if fnmatchcase(test, pattern)), None)
            if reason is None and fnmatchcase(test, self.only):
                chosen.append(test)
            elif reason is not None:
                left[test] = reason
        return chosen, left

    @abstractmethod
    def run(self, server: Server) -> Outcome: ...


class KafkaPython(Suite):
    """test/integration of the source package; its fixtures use a running broker when KAFKA_URI names one."""

    name = "kafka-python"
    settings = {  # noqa: RUF012
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "0",
        "num.partitions": "4",
        **WITH_RULES,
    }
    files = ("test_admin_integration.py", "test_consumer_integration.py", "test_producer_integration.py")
    reasons: dict[str, str] = {}  # noqa: RUF012

    def run(self, server: Server) -> Outcome:
        source = parts.sdist(self.name, installed_version(self.name))
        where = source / "test" / "integration"
        if not where.exists():
            raise parts.PartMissing(f"the source package of {self.name} ships no test/integration.")
        # The package leaves these files out. Without the first Python's own `test` package is found; the
        # second starts brokers, and its tests are given one that runs.
        (source / "test" / "__init__.py").touch()
        (source / "test" / "service.py").write_text(SERVICE)
        # The fixture looks for this folder even when it is given a broker.
        (source / "servers" / TAKEN_FOR / "kafka-bin").mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "KAFKA_URI": f"kafka://{server.bootstrap}",
            "KAFKA_VERSION": TAKEN_FOR,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH")))),
        }
        base = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "asyncio_mode=auto",
            "--rootdir",
            str(source),
        ]
        files = [str(where / file) for file in self.files]
        listed = subprocess.run(
            [*base, "--collect-only", *files],
            cwd=source,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        tests = [line for line in listed.stdout.splitlines() if "::" in line]
        if not tests:
            raise parts.PartMissing(
                f"the tests of {self.name} could not be collected: "
                f"{listed.stdout[-500:]}{listed.stderr[-500:]}"
            )
        chosen, left = self.split(tests)
        left |= {path.name: OWN_BROKERS for path in where.glob("test_*.py") if path.name not in self.files}
        results = parts.PARTS / f"{self.name}.xml"
        results.unlink(missing_ok=True)
        base += ["--timeout=120", "--timeout-method=signal", f"--junitxml={results}"]
        command = [*base, *(f"--deselect={each}" for each in left if "::" in each), *files]
        if self.only != "*":
            command = [*base, *chosen]
        subprocess.run(
            command, cwd=source, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        if not results.exists():
            return Outcome(failed=dict.fromkeys(chosen, "the run did not come to its end"), left_out=left)
        outcome = read_junit(results)
        outcome.left_out = left
        return outcome


def read_junit(path: Path) -> Outcome:
    outcome = Outcome()
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        problem = next((each for each in case if each.tag in ("failure", "error")), None)
        skip = case.find("skipped")
        if problem is not None:
            outcome.failed[name] = (problem.get("message") or "").split("\n")[0][:300]
        elif skip is not None:
            outcome.skipped[name] = skip.get("message") or ""
        else:
            outcome.passed.append(name)
    return outcome


class Aiokafka(Suite):
    """Its source package has held no tests since they moved to the repository's own folder."""

    name = "aiokafka"
    reasons: dict[str, str] = {}  # noqa: RUF012

    def run(self, server: Server) -> Outcome:
        source = parts.sdist(self.name, installed_version(self.name))
        tests = list(source.rglob("test_*.py"))
        if not tests:
            raise parts.PartMissing(
                f"the source package of {self.name} {installed_version(self.name)} ships no tests."
            )
        raise parts.PartMissing(
            f"the source package of {self.name} now ships {len(tests)} test files: choose among them here."
        )


class FranzGo(Suite):
    """The kgo module's tests, which take a broker from KGO_SEEDS."""

    name = "franz-go"
    reasons = {  # noqa: RUF012
        "TestTxnEtl": ETL,
        "TestSCRAM*": LOGIN,
        "*Share*": "needs share groups (KIP-932), which Penstock does not serve",
    }

    def run(self, server: Server) -> Outcome:
        module = parts.go_module(FRANZ_GO, franz_go_version())
        where = module / "pkg" / "kgo"
        broker_files = [path for path in where.glob("*_test.go") if "newTestClient(" in path.read_text()]
        tests = sorted(
            name
            for path in broker_files
            for name in re.findall(r"^func (Test\w+)\(t \*testing", path.read_text(), re.M)
        )
        chosen, left = self.split(tests)
        environment = os.environ | {
            "KGO_SEEDS": server.bootstrap,
            "KGO_TEST_RF": "1",
            "KGO_LOG_LEVEL": "none",
        }
        return go_test(where, chosen, left, environment)


class KafkaGo(Suite):
    """The root package's tests. They look for a broker at localhost:9092; a copy of them is told another address."""

    name = "kafka-go"
    settings = {"message.max.bytes": "200000000", **WITH_RULES}  # noqa: RUF012
    node_id = 1
    reasons = {  # noqa: RUF012
        "TestNetworkAddress": "asks no broker",
        "TestUnsupportedSASLMechanism": LOGIN,
        "TestReaderReadCompactedMessage": "needs message.timestamp.difference.max.ms, which ended with Kafka 3",
    }
    parts_left_out = {  # noqa: RUF012
        "TestConn/test_delete_topics": "asks for deleted topics, which creates them again, and expects them to have no "
        "partitions yet: Penstock answers when they have",
        "TestDialerResolver/resolve_domain_to_ip": "needs a broker at port 9092",
        "TestReaderConsumerGroup/commit": "calls a function that it did not set, whatever the broker answers",
        "TestReaderConsumerGroup/consumer_group_rebalance$": "fails with Apache Kafka 4.3, too",
        "TestWriter/.*SASL": LOGIN,
    }

    def run(self, server: Server) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="conformance-kafka-go-") as folder:
            where = Path(folder) / "source"
            shutil.copytree(parts.go_module(*KAFKA_GO), where, copy_function=shutil.copyfile)
            files = [path for path in where.glob("*_test.go") if self._asks_a_broker(path.read_text())]
            tests = sorted(
                name
                for path in files
                for name in re.findall(r"^func (Test\w+)\(t \*testing", path.read_text(), re.M)
            )
            for path in files:
                path.write_text(self._readdressed(path.read_text(), server))
            chosen, left = self.split(tests)
            environment = os.environ | {"KAFKA_VERSION": TAKEN_FOR, "KAFKA_SKIP_NETTEST": "1"}
            return go_test(where, chosen, left | self.parts_left_out, environment, tuple(self.parts_left_out))

    @staticmethod
    def _asks_a_broker(text: str) -> bool:
        return "newLocalClient" in text or '"localhost:9092"' in text

    @staticmethod
    def _readdressed(text: str, server: Server) -> str:
        text = text.replace('TCP("localhost")', f'TCP("{server.bootstrap}")')
        return re.sub(r"\b9092\b", str(server.port), re.sub(r"\blocalhost\b", server.host, text))


def go_test(
    where: Path,
    chosen: list[str],
    left: dict[str, str],
    environment: dict[str, str],
    skipped: tuple[str, ...] = (),
) -> Outcome:
    """Run these tests of the package in this folder, without the parts of them that are named."""
    # A module's own list of what it needs may leave out what its tests need.
    command = [
        "go",
        "test",
        "-mod=mod",
        "-count=1",
        f"-timeout={TIMEOUT_S}s",
        "-v",
        f"-run=^({'|'.join(chosen)})$",
    ]
    if skipped:
        command.append(f"-skip={'|'.join(skipped)}")
    done = subprocess.run(
        [*command, "."],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 60,
        check=False,
        errors="replace",
    )
    if "=== RUN" not in done.stdout:
        raise parts.PartMissing(f"the tests in {where.name} could not be built: {done.stderr[-300:].strip()}")
    outcome = Outcome(left_out=left)
    for verdict, test in re.findall(r"^--- (PASS|FAIL|SKIP): (\S+)", done.stdout, re.M):
        if verdict == "PASS":
            outcome.passed.append(test)
        elif verdict == "SKIP":
            outcome.skipped[test] = "by its own choice"
        else:
            outcome.failed[test] = _complaint(done.stdout, test)
    for test in chosen:
        if test not in outcome.passed and test not in outcome.failed and test not in outcome.skipped:
            outcome.failed[test] = f"did not end: {(done.stdout + done.stderr)[-300:].strip()}"
    return outcome


def _complaint(output: str, test: str) -> str:
    """What a Go test said; with -v each line belongs to the test that was named last."""
    said, speaker = [], ""
    for line in output.splitlines():
        named = re.match(r"=== (?:RUN|CONT|NAME)\s+(\S+)", line)
        if named:
            speaker = named[1]
        elif (speaker == test or speaker.startswith(f"{test}/")) and re.match(r"\s+\w+_test\.go:\d+: ", line):
            said.append(line.strip())
    return " | ".join(said)[:300] or "see its output"


def franz_go_version() -> str:
    """The version that the franz client program is pinned to."""
    text = (parts.CLIENTS / "franz" / "go.mod").read_text()
    found = re.search(rf"{re.escape(FRANZ_GO)} (v\S+)", text)
    if found is None:
        raise parts.PartMissing("clients/franz/go.mod names no version of franz-go.")
    return found[1]


SUITES: dict[str, type[Suite]] = {suite.name: suite for suite in (KafkaPython, Aiokafka, FranzGo, KafkaGo)}


def report(name: str, outcome: Outcome) -> None:
    print(
        f"\n{name}: {len(outcome.passed)} passed, {len(outcome.failed)} failed, "
        f"{len(outcome.skipped)} skipped by themselves"
    )
    for test in sorted(outcome.passed):
        print(f"  passed   {test}")
    for test, why in sorted(outcome.skipped.items()):
        print(f"  skipped  {test}: {why}")
    for test, why in sorted(outcome.left_out.items()):
        print(f"  left out {test.rsplit('::', 1)[-1]}: {why}")
    for test, why in sorted(outcome.failed.items()):
        print(f"  FAILED   {test}: {why}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.upstream", description=__doc__.splitlines()[0]
    )
    add_against(parser)
    parser.add_argument(
        "--suite", action="append", choices=SUITES, help="only this library's tests; may be repeated"
    )
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only tests whose name fits")
    options = parser.parse_args()
    failed = ran = 0
    try:
        with interrupted_cleanly():
            for name in options.suite or SUITES:
                # The suites expect that the broker's id and the address it advertises are set by hand.
                suite = SUITES[name](options.only)
                with server_named(options.against, suite.settings, suite.node_id) as server:
                    try:
                        outcome = suite.run(server)
                    except parts.PartMissing as why:
                        print(f"\n{name}: {why}")
                        continue
                report(name, outcome)
                failed += len(outcome.failed)
                ran += len(outcome.passed) + len(outcome.failed)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except ServerFailed as why:
        print(f"upstream: {why}", file=sys.stderr)
        return 2
    print(f"\n{ran - failed} passed, {failed} failed")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    raise SystemExit(main())
