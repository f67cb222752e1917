"""The commands that talk to a cluster, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.admin.records import murmur2
from penstock.cli.app import app
from penstock.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def run(broker: Broker, *arguments: str, text: str | bytes | None = None) -> Result:
    environment = {"PENSTOCK_BOOTSTRAP": broker.bootstrap_servers}
    return CliRunner().invoke(app, arguments, env=environment, input=text)


def run_json(broker: Broker, *arguments: str, text: str | None = None) -> Any:
    result = run(broker, *arguments, text=text)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_topics(broker: Broker) -> None:
    made = run_json(
        broker, "topics", "create", "orders", "--partitions", "3", "--config", "retention.ms=1000"
    )
    assert (made["created"], made["partitions"]) == ("orders", 3)
    listed = {row["name"]: row for row in run_json(broker, "topics", "list")}
    assert listed["orders"]["partitions"] == 3
    assert listed["orders"]["id"] == made["id"]
    rows = run_json(broker, "topics", "describe", "orders")
    assert [(row["partition"], row["leader"], row["start_offset"], row["end_offset"]) for row in rows] == [
        (number, 1, 0, 0) for number in range(3)
    ]
    assert run_json(broker, "topics", "delete", "orders") == {"deleted": ["orders"]}
    assert "orders" not in {row["name"] for row in run_json(broker, "topics", "list")}


def test_errors_of_the_broker_are_sentences(broker: Broker) -> None:
    run_json(broker, "topics", "create", "twice")
    for arguments, words in (
        (("topics", "create", "twice"), "TOPIC_ALREADY_EXISTS"),
        (("topics", "create", "bad name"), "INVALID_TOPIC_EXCEPTION"),
        (("topics", "create", "x", "--config", "no.such=1"), "INVALID_CONFIG"),
        (("topics", "describe", "nobody"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("topics", "delete", "nobody"), "UNKNOWN_TOPIC_OR_PARTITION"),
    ):
        result = run(broker, *arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: ")
        assert words in result.stderr
        assert "Traceback" not in result.output
    for line in (
        "topics create x --partitions 99999999999",
        "topics create x --replicas 40000",
        "cluster upgrade --to 40000",
        "transactions list --producer-id 99999999999999999999",
        "topics tail twice -n 99999999999999999999",
        "topics alter twice --partitions 99999999999",
        "top --once --every nan",
        "top --once --every inf",
        "top --once --every 1e300",
        "bench --value-bytes 99999999999",
    ):
        result = run(broker, *line.split())
        assert result.exit_code == 2, line
        assert "\nError: " in result.stderr, line
    assert run(broker, "consume", "twice", "--max", "99999999999999999999").exit_code == 0
    for line in (
        "topics create x --config nonsense",
        "topics create x --config retention.ms=1 --config retention.ms=2",
        "consume twice --from yesterday",
        "consume twice --from @99999999999999999999",
        "produce twice v --partition 9",
    ):
        assert run(broker, *line.split()).exit_code == 2


def test_what_was_deleted_beside_what_was_not_is_told(broker: Broker) -> None:
    for name in ("kept", "gone"):
        run_json(broker, "topics", "create", name)
        run_json(broker, "produce", name, "v")
        run(broker, "consume", name, "--group", name)
    topics = run(broker, "topics", "delete", "nobody", "gone", "no one")
    assert (topics.exit_code, json.loads(topics.stdout)) == (1, {"deleted": ["gone"]})
    assert topics.stderr.count("UNKNOWN_TOPIC_OR_PARTITION") == 2
    groups = run(broker, "groups", "delete", "nobody", "gone")
    assert (groups.exit_code, json.loads(groups.stdout)) == (1, {"deleted": "gone"})
    assert groups.stderr == "Error: There is no group 'nobody'.\n"
    assert "kept" in {one["group"] for one in run_json(broker, "groups", "list")}


def test_produce_and_consume(broker: Broker) -> None:
    sent = run_json(broker, "produce", "lines", text="one\ntwo\nthree\n")
    assert (sent["records"], sent["last_offsets"]) == (3, {"0": 2})
    run_json(broker, "produce", "lines", "four", "--key", "k", "--header", "h=1", "--compression", "zstd")
    assert run(broker, "consume", "lines").stdout == "one\ntwo\nthree\nfour\n"
    assert run(broker, "consume", "lines", "--from", "2", "--max", "1").stdout == "three\n"
    assert run(broker, "consume", "lines", "--from", "end").stdout == ""
    assert run(broker, "consume", "lines", "--committed").stdout == "one\ntwo\nthree\nfour\n"
    last = run(broker, "consume", "lines", "--from", "3", "--json").stdout
    record = json.loads(last)
    assert (record["key"], record["value"], record["offset"]) == ("k", "four", 3)
    assert record["headers"] == [["h", "1"]]


def test_keys_choose_partitions_as_other_clients_do(broker: Broker) -> None:
    # From Kafka's own UtilsTest.
    for key, expected in (
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
    ):
        assert murmur2(key) == expected & 0xFFFFFFFF
    run_json(broker, "topics", "create", "keyed", "--partitions", "4")
    run_json(broker, "produce", "keyed", "--key-separator", ":", text="a:1\nb:2\na:3\n")
    records = [json.loads(line) for line in run(broker, "consume", "keyed", "--json").stdout.splitlines()]
    places = {record["key"]: record["partition"] for record in records}
    assert len(records) == 3
    assert places["a"] == (murmur2(b"a") & 0x7FFFFFFF) % 4
    only = run(broker, "consume", "keyed", "--partition", str(places["a"]), "--json").stdout
    assert {"1", "3"} <= {json.loads(line)["value"] for line in only.splitlines()}


def test_bytes_that_are_not_text(broker: Broker) -> None:
    run(broker, "produce", "raw", text=b"\xff\xfe\n")
    record = json.loads(run(broker, "consume", "raw", "--json").stdout)
    assert record["value"] == {"base64": "//4="}
    assert run(broker, "consume", "raw").stdout_bytes == b"\xff\xfe\n"


def test_cluster_status(broker: Broker) -> None:
    status = run_json(broker, "cluster", "status")
    assert status["controller"] == 1
    assert [row["address"] for row in status["brokers"]] == [broker.bootstrap_servers]


def test_tables_for_people(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    run(broker, "topics", "create", "shown")
    monkeypatch.setattr("penstock.cli.topics.wants_json", lambda flag: flag)
    monkeypatch.setattr("penstock.cli.cluster.wants_json", lambda flag: flag)
    table = run(broker, "topics", "list").stdout
    assert "TOPIC" in table
    assert "shown" in table
    assert "POSITION" in run(broker, "cluster", "status").stdout
    assert run(broker, "topics", "create", "told").stdout == "Created topic told with 1 partition.\n"
