"""franz-go, kafka-go, Watermill and confluent-kafka-go: the tests in their modules."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from conformance import parts
from conformance.server import Server
from conformance.upstream.suite import LOGIN, TAKEN_FOR, TIMEOUT_S, WITH_RULES, OneBroker, Outcome

ETL = "run by conformance.transactions.etl, with its chaos"
FRANZ_GO = "github.com/twmb/franz-go"
KAFKA_GO = "github.com/segmentio/kafka-go", "v0.4.51"
WATERMILL = "github.com/ThreeDotsLabs/watermill-kafka/v3", "v3.0.6"
CONFLUENT = "github.com/confluentinc/confluent-kafka-go/v2", "v2.12.0"
CONTAINERS = "github.com/testcontainers/testcontainers-go/modules/compose"
NO_CONTAINERS = """package compose

type LocalDockerCompose struct{}
type ExecError struct{ Error error }

func NewLocalDockerCompose([]string, string) *LocalDockerCompose       { return nil }
func (c *LocalDockerCompose) WithCommand([]string) *LocalDockerCompose { return c }
func (c *LocalDockerCompose) Invoke() ExecError                        { return ExecError{} }
func (c *LocalDockerCompose) Down() ExecError                          { return ExecError{} }
"""


class FranzGo(OneBroker):
    """The kgo module's tests, which take a broker from KGO_SEEDS."""

    name = "franz-go"
    reasons = {  # noqa: RUF012
        "TestTxnEtl": ETL,
        "TestSCRAM*": LOGIN,
        "*Share*": "needs share groups (KIP-932), which Penstock does not serve",
    }

    def run(self, server: Server) -> Outcome:
        module = parts.go_module(FRANZ_GO, pinned_version("franz", FRANZ_GO))
        where = module / "pkg" / "kgo"
        broker_files = [path for path in where.glob("*_test.go") if "newTestClient(" in path.read_text()]
        tests = go_tests(broker_files)
        chosen, left = self.split(tests)
        environment = os.environ | {
            "KGO_SEEDS": server.bootstrap,
            "KGO_TEST_RF": "1",
            "KGO_LOG_LEVEL": "none",
        }
        return go_test(where, chosen, left, environment)


class KafkaGo(OneBroker):
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
            tests = go_tests(files)
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


class Watermill(OneBroker):
    """Its Kafka module's tests: what its users expect of publishers and subscribers, on Sarama."""

    name = "watermill"
    settings = {"group.initial.rebalance.delay.ms": "0"}  # noqa: RUF012
    reasons: dict[str, str] = {}  # noqa: RUF012

    def run(self, server: Server) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="conformance-watermill-") as folder:
            # Go writes down what the tests need, and a module in the cache is read-only.
            source = Path(folder) / "source"
            shutil.copytree(parts.go_module(*WATERMILL), source, copy_function=shutil.copyfile)
            where = source / "pkg" / "kafka"
            chosen, left = self.split(go_tests([where / "pubsub_test.go"]))
            environment = os.environ | {"WATERMILL_TEST_KAFKA_BROKERS": server.bootstrap}
            return go_test(where, chosen, left, environment)


class ConfluentKafkaGo(OneBroker):
    """The suite of its integration tests: librdkafka as Go programs use it, its administrative client above all."""

    name = "confluent-kafka-go"
    settings = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "4", **WITH_RULES}  # noqa: RUF012
    suite = "TestIntegration"
    reasons = {  # noqa: RUF012
        "TestAdminClient_DescribeCluster": LOGIN,
        "TestAdminClient_DescribeConsumerGroupsAuthorizedOperations": LOGIN,
        "TestAdminClient_DescribeTopics": LOGIN,
    }

    def run(self, server: Server) -> Outcome:
        module, version = CONFLUENT
        with tempfile.TemporaryDirectory(prefix="conformance-confluent-kafka-go-") as folder:
            source = Path(folder) / "source"
            shutil.copytree(parts.go_module(module, version), source, copy_function=shutil.copyfile)
            where = source / "kafka"
            tests = where / "integration_test.go"
            # It can start containers, which are not asked for here and whose client is a hundred modules.
            (where / "compose").mkdir()
            (where / "compose" / "compose.go").write_text(NO_CONTAINERS)
            text = tests.read_text()
            tests.write_text(text.replace(CONTAINERS, f"{module}/kafka/compose"))
            (where / "testconf.json").write_text(
                json.dumps({"Brokers": server.bootstrap, "TopicName": "test", "GroupID": "testgroup"})
            )
            chosen, left = self.split(
                sorted(re.findall(r"^func \(\w+ \*IntegrationTestSuite\) (Test\w+)\(", text, re.M))
            )
            return go_test(where, chosen, left, dict(os.environ), suite=self.suite)


def go_tests(files: Iterable[Path]) -> list[str]:
    """The names of the tests in these files."""
    return sorted(
        name for path in files for name in re.findall(r"^func (Test\w+)\(t \*testing", path.read_text(), re.M)
    )


def go_test(
    where: Path,
    chosen: list[str],
    left: dict[str, str],
    environment: dict[str, str],
    skipped: tuple[str, ...] = (),
    tags: str = "",
    suite: str = "",
) -> Outcome:
    """Run these tests of the package in this folder, without the parts of them that are named.

    Where a suite is named, they are its methods: parts of that one test.
    """
    within = f"{suite}/" if suite else ""
    # A module's own list of what it needs may leave out what its tests need.
    command = [
        "go",
        "test",
        "-mod=mod",
        "-count=1",
        f"-timeout={TIMEOUT_S}s",
        "-v",
        f"-run={f'^{suite}$/' if suite else ''}^({'|'.join(chosen)})$",
    ]
    if tags:
        command.append(f"-tags={tags}")
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
    for verdict, test in verdicts(done.stdout, within):
        if verdict == "PASS":
            outcome.passed.append(test)
        elif verdict == "SKIP":
            outcome.skipped[test] = "by its own choice"
        else:
            outcome.failed[test] = complaint(done.stdout, within + test)
    for test in chosen:
        if test not in outcome.passed and test not in outcome.failed and test not in outcome.skipped:
            outcome.failed[test] = f"did not end: {(done.stdout + done.stderr)[-300:].strip()}"
    return outcome


def verdicts(output: str, within: str = "") -> list[tuple[str, str]]:
    """PASS, FAIL or SKIP and the name, of each test that this output of Go's tells of, and of no part of a test."""
    return re.findall(rf"^ *--- (PASS|FAIL|SKIP): {re.escape(within)}([^/\s]+) ", output, re.M)


# Where a test says it, and what: testify has each on lines of its own, the later ones without a word in front.
COMPLAINT = re.compile(r"\s+(\w+_test\.go:\d+:|Error:|Messages:)\s| {8}\t {12}\t")


def complaint(output: str, test: str) -> str:
    """What a Go test said; with -v each line belongs to the test that was named last."""
    said, speaker = [], ""
    for line in output.splitlines():
        named = re.match(r"=== (?:RUN|CONT|NAME)\s+(\S+)", line)
        if named:
            speaker = named[1]
        elif (speaker == test or speaker.startswith(f"{test}/")) and COMPLAINT.match(line):
            said.append(" ".join(line.split()))
    return " | ".join(said)[:300] or "see its output"


def pinned_version(client: str, module: str) -> str:
    """The version of a module that a client program is pinned to."""
    text = (parts.CLIENTS / client / "go.mod").read_text()
    found = re.search(rf"{re.escape(module)} (v\S+)", text)
    if found is None:
        raise parts.PartMissing(f"clients/{client}/go.mod names no version of {module}.")
    return found[1]
