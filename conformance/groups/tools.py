"""Kafka's own tools read, change and configure groups; their output is compared with the facts.

kafka-console-consumer reads `__consumer_offsets` through Kafka's formatters and must show every commit and
every tombstone in order. kafka-consumer-groups describes, resets and deletes; kafka-groups lists.
kafka-configs sets the times of a group, which its members must be told and held to. Last, offsets of groups
without members expire when their time has come, not before, and those of a group at work stay.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer

from conformance import parts
from conformance.client import BY_NAME, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.groups.offsets import OFFSETS_TOPIC, Topic, commit_plainly, committed, find_topic
from conformance.server import Server, ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named
from conformance.wire.connection import Connection
from penstock.testing.waiting import Late, until

TOPIC = "tools"
PARTITIONS = 2
RECORDS = 20
TOOL_TIMEOUT_S = 120.0
RETENTION_S = 60.0
"""The shortest that a broker can be told."""
EXPIRED_MAX_S = 20.0
JOIN_MAX_S = 30.0
SILENCE_MAX_S = 10.0
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "500",
}
OFFSET_KIND, GROUP_KIND = 1, 2
HEARTBEAT = ("ConsumerGroupHeartbeat", 1)


class Wrong(Exception):
    """A tool, or the broker, did not say what it should."""


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Wrong(f"{what}: {found!r}, expected {wanted!r}")


@dataclass(frozen=True, slots=True)
class Tools:
    server: Server

    def run(self, name: str, *options: str) -> str:
        java = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)
        command = [*java, name, "--bootstrap-server", self.server.bootstrap, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        if done.returncode != 0 or "Error:" in done.stdout:
            raise Wrong(f"{name} {' '.join(options)}: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout

    def groups(self, *options: str) -> list[dict[str, str]]:
        """The table that kafka-consumer-groups prints, a row a dictionary."""
        return table(self.run("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *options))

    def read(self, formatter: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
        """Every record of the offsets topic that the formatter shows: the fields of its key and value."""
        printed = self.run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--topic", OFFSETS_TOPIC, "--from-beginning", "--timeout-ms", "4000"),
            *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
        )
        printed = printed.strip()
        found, at, decoder = [], 0, json.JSONDecoder()
        while at < len(printed):  # one after the other, with nothing in between
            shown, at = decoder.raw_decode(printed, at)
            value = shown["value"]
            found.append((shown["key"] | shown["key"]["data"], None if value is None else value["data"]))
        return found


def table(printed: str) -> list[dict[str, str]]:
    """Rows under a line of headings. Kafka aligns both, so a cell is where its heading is or to its right."""
    rows, columns = [], []
    for line in printed.splitlines():
        cells = line.split()
        if cells[:1] == ["GROUP"]:
            columns = cells
        elif columns and len(cells) >= len(columns) - 1 and cells:
            rows.append(dict(zip(columns, cells, strict=False)))
    return rows


def prepare(server: Server) -> Topic:
    with Session(BY_NAME["confluent-kafka"], server.bootstrap) as session:
        session.create(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            session.produce(TOPIC, partition, "none", [Record(None, b"%d" % at) for at in range(RECORDS)])
    return find_topic(server, TOPIC)


def member(server: Server, group: str, protocol: str) -> Consumer:
    """A consumer that has both partitions, has read everything and committed it."""
    settings: dict[str, Any] = {
        "bootstrap.servers": server.bootstrap,
        "group.id": group,
        "client.id": f"client-of-{group}",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + JOIN_MAX_S
    seen = 0
    while seen < PARTITIONS * RECORDS:
        if time.monotonic() > deadline:
            raise Wrong(f"{group}: {seen} of {PARTITIONS * RECORDS} records after {JOIN_MAX_S:.0f} s")
        seen += sum(not message.error() for message in consumer.consume(100, 0.2))
    consumer.commit(asynchronous=False)
    return consumer


def read_the_log(tools: Tools, topic: Topic) -> None:
    """Commits, a commit again, and what is deleted: each a record, in order."""
    server = tools.server
    commit_plainly(server, "plain", topic, {0: 5, 1: 7})
    commit_plainly(server, "plain", topic, {0: 6})
    with Connection(server.host, server.port) as connection:
        partitions = [{"PartitionIndex": 1}]
        body = {"GroupId": "plain", "Topics": [{"Name": TOPIC, "Partitions": partitions}]}
        expect("OffsetDelete", connection.call("OffsetDelete", 0, body)["ErrorCode"], 0)
    offsets = tools.read("OffsetsMessageFormatter")
    expect("kinds of keys", {key["type"] for key, _ in offsets}, {OFFSET_KIND})
    history: dict[int, list[int | None]] = {0: [], 1: []}
    for key, value in offsets:
        if (key["group"], key["topic"]) == ("plain", TOPIC):
            history[key["partition"]].append(None if value is None else value["offset"])
    expect("commits of partition 0", history[0], [5, 6])
    expect("commits of partition 1", history[1], [7, None])
    by_group = Counter(key["group"] for key, _ in offsets)
    expect("commits of the consumers", (by_group["classic"], by_group["consumer"]), (PARTITIONS, PARTITIONS))
    states = [
        value for key, value in tools.read("GroupMetadataMessageFormatter") if key["group"] == "classic"
    ]
    last = states[-1]
    if last is None:
        raise Wrong("the classic group has a tombstone")
    expect("its type", last["protocolType"], "consumer")
    expect("its members", [each["clientId"] for each in last["members"]], ["client-of-classic"])
    print(f"kafka-console-consumer: {len(offsets)} commits and tombstones, as they were made", flush=True)


def describe(tools: Tools) -> None:
    for group in ("classic", "consumer"):
        rows = tools.groups("--describe", "--group", group)
        found = {
            int(row["PARTITION"]): (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in rows
        }
        expect(
            f"offsets of {group}", found, dict.fromkeys(range(PARTITIONS), (str(RECORDS), str(RECORDS), "0"))
        )
        expect(f"clients of {group}", {row["CLIENT-ID"] for row in rows}, {f"client-of-{group}"})
        (row,) = tools.groups("--describe", "--members", "--verbose", "--group", group)
        expect(f"members of {group}", (row["CLIENT-ID"], row["#PARTITIONS"]), (f"client-of-{group}", "2"))
        (row,) = tools.groups("--describe", "--state", "--group", group)
        expect(f"state of {group}", (row["STATE"], row["#MEMBERS"]), ("Stable", "1"))
    listed = {
        row["GROUP"]: (row["TYPE"], row.get("PROTOCOL"))
        for row in table(tools.run("org.apache.kafka.tools.GroupsCommand", "--list"))
    }
    expect("kafka-groups", listed.get("classic"), ("Classic", "consumer"))
    expect("kafka-groups", listed.get("consumer"), ("Consumer", "consumer"))
    print("kafka-consumer-groups and kafka-groups: members, states, offsets and lag", flush=True)


def change(tools: Tools, topic: Topic) -> None:
    """Reset, delete offsets, delete the group."""
    server = tools.server
    some = ("--group", "resettable", "--topic", TOPIC)
    commit_plainly(server, "resettable", topic, {0: 1, 1: 1})
    tools.groups("--reset-offsets", *some, "--to-offset", "4", "--execute")
    expect("after --to-offset 4", committed(server, "resettable", topic), {0: 4, 1: 4})
    tools.groups("--reset-offsets", *some, "--shift-by", "3", "--execute")
    expect("after --shift-by 3", committed(server, "resettable", topic), {0: 7, 1: 7})
    tools.groups("--reset-offsets", *some, "--to-latest", "--dry-run")
    expect("after a dry run", committed(server, "resettable", topic), {0: 7, 1: 7})
    tools.groups("--reset-offsets", *some, "--to-latest", "--execute")
    expect("after --to-latest", committed(server, "resettable", topic), {0: RECORDS, 1: RECORDS})
    tools.groups("--delete-offsets", "--group", "resettable", "--topic", f"{TOPIC}:1")
    expect("after --delete-offsets", committed(server, "resettable", topic), {0: RECORDS})
    tools.groups("--delete", "--group", "resettable")
    expect("after --delete", committed(server, "resettable", topic), {})
    try:
        tools.groups("--delete", "--group", "classic")
    except Wrong as refusal:
        expect("deleting a group at work", "GroupNotEmptyException" in str(refusal), True)
    else:
        raise Wrong("a group at work was deleted")
    print("kafka-consumer-groups: offsets reset and deleted, a group deleted, one at work not", flush=True)


def configure(tools: Tools) -> None:
    """A group's own times are told to its members and are what they are held to."""
    server, group = tools.server, "configured"
    tool = "kafka.admin.ConfigCommand"
    place = ("--entity-type", "groups", "--entity-name", group)

    def beat(connection: Connection, epoch: int, **more: Any) -> dict[str, Any]:
        body = {"GroupId": group, "MemberId": "one", "MemberEpoch": epoch, **more}
        return connection.call(*HEARTBEAT, body)

    first = {"RebalanceTimeoutMs": 5000, "SubscribedTopicNames": [TOPIC], "TopicPartitions": []}
    with Connection(server.host, server.port) as connection:
        answer = beat(connection, 0, **first)
        expect("heartbeat interval by default", answer["HeartbeatIntervalMs"], 5000)
        chosen = "consumer.heartbeat.interval.ms=600,consumer.session.timeout.ms=2000"
        tools.run(tool, "--alter", *place, "--add-config", chosen)
        shown = tools.run(tool, "--describe", *place)
        for setting in chosen.split(","):
            expect(f"{setting} shown", setting in shown, True)
        answer = beat(connection, answer["MemberEpoch"])
        expect("heartbeat interval as set", answer["HeartbeatIntervalMs"], 600)
        began = time.monotonic()
        until(
            lambda: not members_of(connection, group),
            SILENCE_MAX_S,
            "the end of a silent member",
            every_s=0.2,
        )
        silent_s = time.monotonic() - began
        expect("dropped before its session was over", silent_s < 1.5, False)
        names = ",".join(setting.partition("=")[0] for setting in chosen.split(","))
        tools.run(tool, "--alter", *place, "--delete-config", names)
        answer = beat(connection, 0, **first)
        expect("heartbeat interval by default again", answer["HeartbeatIntervalMs"], 5000)
        beat(connection, -1)
    print(f"kafka-configs: a silent member was dropped after {silent_s:.1f} s, its session 2 s", flush=True)


def members_of(connection: Connection, group: str) -> list[Any]:
    described = connection.call("ConsumerGroupDescribe", 0, {"GroupIds": [group]})["Groups"][0]
    found: list[Any] = described["Members"]
    return found


def expire(tools: Tools, topic: Topic, consumers: Sequence[Consumer]) -> None:
    server = tools.server
    commit_plainly(server, "expiring", topic, {0: 3, 1: 4})
    began = time.monotonic()

    def gone() -> bool:
        for consumer in consumers:
            consumer.poll(0)
        return not committed(server, "expiring", topic)

    until(gone, RETENTION_S + EXPIRED_MAX_S, "the end of old offsets", every_s=0.2)
    took = time.monotonic() - began
    expect(f"expired after {took:.0f} s, before their time", took < RETENTION_S - 1, False)
    with Connection(server.host, server.port) as connection:
        listed = {each["GroupId"] for each in connection.call("ListGroups", 4, {})["Groups"]}
    expect(
        "groups that are left", listed & {"expiring", "plain", "classic", "consumer"}, {"classic", "consumer"}
    )
    for group in ("classic", "consumer"):
        expect(
            f"offsets of {group}", committed(server, group, topic), dict.fromkeys(range(PARTITIONS), RECORDS)
        )
    last: dict[tuple[str, int], Any] = {}
    for key, value in tools.read("OffsetsMessageFormatter"):
        if key["topic"] == TOPIC:
            last[key["group"], key["partition"]] = value and value["offset"]
    for partition in range(PARTITIONS):
        # The cleaner may have dropped the tombstone as well; then there is nothing at all.
        expect("the record of what expired", last.get(("expiring", partition)), None)
        expect("the record of what did not", last["classic", partition], RECORDS)
    print(f"offsets without members expired after {took:.0f} s, those of members stayed", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.groups.tools", description=__doc__.splitlines()[0]
    )
    add_against(parser)
    options = parser.parse_args()
    consumers: list[Consumer] = []
    try:
        with interrupted_cleanly(), server_named(options.against, SETTINGS) as server:
            tools = Tools(server)
            topic = prepare(server)
            try:
                consumers += [member(server, protocol, protocol) for protocol in ("classic", "consumer")]
                read_the_log(tools, topic)
                describe(tools)
                change(tools, topic)
                configure(tools)
                expire(tools, topic, consumers)
            finally:
                for consumer in consumers:
                    consumer.close()
    except (Wrong, Late) as why:
        print(f"FAILED {why}", flush=True)
        return 1
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, ClientFailed) as why:
        print(f"group_tools: {why}", file=sys.stderr)
        return 2
    print(f"Kafka's tools for groups against {server.name}: all as it should be")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
