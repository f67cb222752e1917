"""Kafka's command line tools and other programs, with the files that `penstock start --secure` writes, as they are.

    python -m conformance.security.tools [--only NAME ...]

kafka-configs makes users and quotas, shows and deletes them; kafka-acls adds, lists and removes rules, by its shorthands
and with prefixes, and what they allow and refuse is seen with the tools of a user who has no other rights; kafka-topics,
kafka-console-producer, kafka-console-consumer, kafka-consumer-groups, kafka-leader-election, kafka-cluster,
kafka-delegation-tokens (and a login with a token). Then librdkafka with `librdkafka.properties`, and
Penstock's own commands. Kafka's newest tools are run; they need Java and Maven.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer

from conformance import parts
from conformance.security.secure import Cluster, secure_cluster
from conformance.server import interrupted_cleanly
from penstock.settings.properties import parse_properties

TIMEOUT_S = 120.0
TOOLS = "org.apache.kafka.tools"
CONFIGS, ACLS = "kafka.admin.ConfigCommand", f"{TOOLS}.AclCommand"
TOPICS, GROUPS = f"{TOOLS}.TopicCommand", f"{TOOLS}.consumer.group.ConsumerGroupCommand"
PRODUCER, CONSUMER = f"{TOOLS}.ConsoleProducer", f"{TOOLS}.consumer.ConsoleConsumer"
TOKENS = f"{TOOLS}.DelegationTokenCommand"
LINES = ("one", "two", "three")
USER, PASSWORD = "carol", "carol's-secret"


class Wrong(Exception):
    """A tool did not say or do what it should."""


def expect(text: str, *wanted: str) -> None:
    for one in wanted:
        if one not in text:
            raise Wrong(f"{one!r} is not in: {text.strip()[:600]}")


def expect_without(text: str, *unwanted: str) -> None:
    for one in unwanted:
        if one in text:
            raise Wrong(f"{one!r} is in: {text.strip()[:600]}")


class Tools:
    """Kafka's tools as one user runs them."""

    def __init__(self, cluster: Cluster, properties: Path) -> None:
        self.cluster = cluster
        self._properties = str(properties)
        self._java = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)

    def run(self, tool: str, *arguments: str, given: Sequence[str] = (), refused: bool = False) -> str:
        """What a tool prints. It must end well, or badly where it should be refused."""
        option = {TOKENS: "--command-config", f"{TOOLS}.ClusterTool": "--config"}.get(
            tool, "--command-config"
        )
        if tool == f"{TOOLS}.LeaderElectionCommand":
            option = "--admin.config"
        shared = ["--bootstrap-server", self.cluster.bootstrap, option, self._properties]
        action = list(arguments)
        if tool == f"{TOOLS}.ClusterTool":  # its options follow its command
            shared, action = [*action, *shared], []
        done = subprocess.run(
            [*self._java, tool, *shared, *action],
            input="".join(f"{line}\n" for line in given),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        said = done.stdout + done.stderr
        if (done.returncode != 0) != refused and not (refused and "AuthorizationException" in said):
            raise Wrong(f"{tool} {' '.join(arguments)} ended with {done.returncode}: {said.strip()[:800]}")
        return said

    def reads(self, topic: str, group: str, count: int) -> list[str]:
        said = self.run(
            CONSUMER,
            *("--topic", topic, "--group", group, "--from-beginning"),
            *("--max-messages", str(count), "--timeout-ms", "20000"),
        )
        return [line for line in said.splitlines() if line in LINES]


def topics_and_records(admin: Tools, _: Tools) -> None:
    admin.run(TOPICS, "--create", "--topic", "orders", "--partitions", "2")
    expect(admin.run(TOPICS, "--list"), "orders")
    expect(admin.run(TOPICS, "--describe", "--topic", "orders"), "PartitionCount: 2")
    admin.run(PRODUCER, "--topic", "orders", given=LINES)
    found = admin.reads("orders", "readers", len(LINES))
    if sorted(found) != sorted(LINES):
        raise Wrong(f"read {found}")
    expect(admin.run(GROUPS, "--list"), "readers")
    expect(admin.run(GROUPS, "--describe", "--group", "readers"), "orders")


def users(admin: Tools, carol: Tools) -> None:
    entity = ("--entity-type", "users", "--entity-name", USER)
    secrets = ",".join(
        f"SCRAM-SHA-{size}=[iterations=8192,password={PASSWORD}]" for size in (256, 512)
    ).split(",SCRAM")
    # Two mechanisms of one user are two changes to the same user, which Kafka refuses in one request.
    admin.run(CONFIGS, "--alter", "--add-config", secrets[0], *entity)
    admin.run(CONFIGS, "--alter", "--add-config", f"SCRAM{secrets[1]}", *entity)
    expect(
        admin.run(CONFIGS, "--describe", *entity),
        "SCRAM-SHA-256=iterations=8192",
        "SCRAM-SHA-512=iterations=8192",
    )
    expect_without(carol.run(TOPICS, "--list"), "orders")
    admin.run(CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-256", *entity)
    expect_without(admin.run(CONFIGS, "--describe", *entity), "SCRAM-SHA-256")


def quotas(admin: Tools, _: Tools) -> None:
    of_user = ("--entity-type", "users", "--entity-name", USER)
    of_client = (*of_user, "--entity-type", "clients", "--entity-name", "batch")
    of_all = ("--entity-type", "users", "--entity-default")
    admin.run(
        CONFIGS, "--alter", "--add-config", "producer_byte_rate=1048576,consumer_byte_rate=2097152", *of_user
    )
    admin.run(CONFIGS, "--alter", "--add-config", "request_percentage=50", *of_client)
    admin.run(CONFIGS, "--alter", "--add-config", "controller_mutation_rate=10", *of_all)
    expect(
        admin.run(CONFIGS, "--describe", *of_user),
        "producer_byte_rate=1048576.0",
        "consumer_byte_rate=2097152.0",
    )
    expect(admin.run(CONFIGS, "--describe", *of_client), "request_percentage=50.0", "batch")
    expect(admin.run(CONFIGS, "--describe", *of_all), "controller_mutation_rate=10.0")
    admin.run(CONFIGS, "--alter", "--delete-config", "producer_byte_rate", *of_user)
    expect_without(admin.run(CONFIGS, "--describe", *of_user), "producer_byte_rate")
    ips = ("--entity-type", "ips", "--entity-name", "10.1.2.3")
    admin.run(CONFIGS, "--alter", "--add-config", "connection_creation_rate=7", *ips)
    expect(admin.run(CONFIGS, "--describe", *ips), "connection_creation_rate=7")


def shorthands(admin: Tools, carol: Tools) -> None:
    """--producer and --consumer, and what they open."""
    name = f"User:{USER}"
    # Of the topic, or of the cluster: who may write to no topic at all gets no producer id either.
    expect(carol.run(PRODUCER, "--topic", "orders", given=LINES, refused=True), "AuthorizationException")
    admin.run(ACLS, "--add", "--allow-principal", name, "--producer", "--topic", "orders")
    carol.run(PRODUCER, "--topic", "orders", given=LINES)
    expect(
        admin.run(ACLS, "--list", "--topic", "orders"),
        *(
            f"principal={name}, host=*, operation={one}, permissionType=ALLOW"
            for one in ("WRITE", "DESCRIBE", "CREATE")
        ),
    )
    refused = carol.run(
        CONSUMER, "--topic", "orders", "--group", "carols", "--timeout-ms", "9000", refused=True
    )
    expect(refused, "GroupAuthorizationException")
    admin.run(
        ACLS, "--add", "--allow-principal", name, "--consumer", "--topic", "orders", "--group", "carols"
    )
    found = carol.reads("orders", "carols", 2 * len(LINES))
    if sorted(found) != sorted(2 * LINES):
        raise Wrong(f"read {found}")
    admin.run(ACLS, "--remove", "--force", "--allow-principal", name, "--producer", "--topic", "orders")
    expect_without(admin.run(ACLS, "--list", "--topic", "orders"), "operation=WRITE")
    expect(carol.run(PRODUCER, "--topic", "orders", given=LINES, refused=True), "AuthorizationException")


def prefixes(admin: Tools, carol: Tools) -> None:
    """A rule by prefix, and a denial over it."""
    name = f"User:{USER}"
    prefixed = ("--topic", "team-", "--resource-pattern-type", "prefixed")
    for operation in ("Create", "Write", "Read"):
        admin.run(ACLS, "--add", "--allow-principal", name, "--operation", operation, *prefixed)
    admin.run(ACLS, "--add", "--deny-principal", name, "--operation", "Write", "--topic", "team-closed")
    carol.run(TOPICS, "--create", "--topic", "team-open")
    carol.run(TOPICS, "--create", "--topic", "team-closed")
    carol.run(PRODUCER, "--topic", "team-open", given=LINES)
    refused = carol.run(PRODUCER, "--topic", "team-closed", given=LINES, refused=True)
    expect(refused, "TopicAuthorizationException")
    match = admin.run(ACLS, "--list", "--topic", "team-closed", "--resource-pattern-type", "match")
    expect(match, "patternType=PREFIXED", "permissionType=DENY")
    expect_without(admin.run(ACLS, "--list", "--topic", "team-closed"), "patternType=PREFIXED")
    admin.run(ACLS, "--remove", "--force", *prefixed)
    expect_without(admin.run(ACLS, "--list"), "PREFIXED")
    expect(carol.run(ACLS, "--list", refused=True), "ClusterAuthorizationException")


def elections_and_cluster(admin: Tools, _: Tools) -> None:
    said = admin.run(
        f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions"
    )
    expect_without(said, "Exception")
    expect(admin.run(f"{TOOLS}.ClusterTool", "cluster-id"), "Cluster ID")


def delegation_tokens(admin: Tools, _: Tools) -> None:
    """A token is made, shown, logged in with, renewed and ended."""
    made = admin.run(
        TOKENS, "--create", "--max-life-time-period", "-1", "--renewer-principal", f"User:{USER}"
    )
    row = next(line.split() for line in made.splitlines() if "User:admin" in line)
    token, hmac = row[0], row[1]
    own = ("--owner-principal", "User:admin")  # without it the tool asks for the tokens of nobody
    expect(admin.run(TOKENS, "--describe", *own), token)
    given = parse_properties(admin.cluster.client_properties.read_text())
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    given["sasl.jaas.config"] = f'{module} required username="{token}" password="{hmac}" tokenauth="true";'
    file = admin.cluster.store.parent / "token.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in given.items()))
    expect(Tools(admin.cluster, file).run(TOPICS, "--list"), "orders")
    expect(admin.run(TOKENS, "--renew", "--renew-time-period", "-1", "--hmac", hmac), "Completed renew")
    expect(admin.run(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", hmac), "Completed expire")
    expect_without(admin.run(TOKENS, "--describe", *own), token)


def removed_user(admin: Tools, carol: Tools) -> None:
    entity = ("--entity-type", "users", "--entity-name", USER)
    admin.run(CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-512", *entity)
    expect(carol.run(TOPICS, "--list", refused=True), "SaslAuthenticationException")


def librdkafka(admin: Tools, _: Tools) -> None:
    """confluent-kafka with the file as it is."""
    given = admin.cluster.librdkafka()
    producer = Producer(given)
    for line in LINES:
        producer.produce("from-librdkafka", line)
    if producer.flush(30):
        raise Wrong("nothing was acknowledged")
    consumer = Consumer({**given, "group.id": "rd", "auto.offset.reset": "earliest"})
    consumer.subscribe(["from-librdkafka"])
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(found) < len(LINES) and time.monotonic() < deadline:
        record = consumer.poll(0.5)
        if record is not None and record.error() is None:
            found.append(record.value() or b"")
    consumer.close()
    if found != [line.encode() for line in LINES]:
        raise Wrong(f"read {found}")


def own_commands(admin: Tools, _: Tools) -> None:
    cluster = admin.cluster
    expect(cluster.penstock("topics", "list"), "orders")
    cluster.penstock("produce", "own", given=b"one\ntwo\nthree\n")
    expect(cluster.penstock("consume", "own", "--max", "3"), *LINES)
    expect(cluster.penstock("users", "list"), "admin")


PROOFS: tuple[Callable[[Tools, Tools], None], ...] = (
    topics_and_records,
    users,
    quotas,
    shorthands,
    prefixes,
    elections_and_cluster,
    delegation_tokens,
    removed_user,
    librdkafka,
    own_commands,
)


def properties_of(cluster: Cluster) -> Path:
    """Those of a user without rights, made from what the administrator has."""
    given = parse_properties(cluster.client_properties.read_text())
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    given["sasl.jaas.config"] = f'{module} required username="{USER}" password="{PASSWORD}";'
    file = cluster.store.parent / "carol.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in given.items()))
    return file


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [proof.__name__ for proof in PROOFS]
    parser.add_argument("--only", action="append", choices=names, help="this one alone; may be repeated")
    chosen = parser.parse_args().only or names
    try:
        parts.kafka_classpath(parts.KAFKA_NEWEST)
    except parts.PartMissing as missing:
        return parts.not_run(missing)
    failures = 0
    settings = {"delegation.token.secret.key": "a key for tokens", "group.initial.rebalance.delay.ms": "0"}
    with interrupted_cleanly(), secure_cluster(settings=settings) as cluster:
        admin, carol = Tools(cluster, cluster.client_properties), Tools(cluster, properties_of(cluster))
        for proof in (one for one in PROOFS if one.__name__ in chosen):
            began = time.monotonic()
            try:
                proof(admin, carol)
                why = ""
            except (Wrong, AssertionError) as error:
                why = str(error)
            failures += bool(why)
            name = proof.__name__.replace("_", " ")
            print(
                f"{'FAILED' if why else 'held  '} {name} ({time.monotonic() - began:.0f} s) {why}", flush=True
            )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
