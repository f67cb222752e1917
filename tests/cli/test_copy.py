"""`penstock topics copy`: what is kept, what is left out, and where a copy goes on that was stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from penstock.admin import copying
from penstock.admin import records as admin_records
from penstock.admin.configs import describe_configs
from penstock.admin.copying import Copy
from penstock.admin.records import send_batch
from penstock.admin.topics import TOPIC
from penstock.cli.app import app
from penstock.cli.client import Client, ClientError
from penstock.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def other() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def run(broker: Broker, *arguments: str) -> Result:
    environment = {"PENSTOCK_BOOTSTRAP": broker.bootstrap_servers}
    return CliRunner().invoke(app, arguments, env=environment)


def run_json(broker: Broker, *arguments: str) -> Any:
    result = run(broker, *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def records(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """All of a topic, by partition, without offsets and the topic's name."""
    found = [json.loads(line) for line in run(broker, "consume", topic, "--json").stdout.splitlines()]
    return sorted(
        ({key: value for key, value in one.items() if key not in ("offset", "topic")} for one in found),
        key=lambda one: (one["partition"], one["value"]),
    )


def fill(broker: Broker, topic: str) -> None:
    """Records with keys, headers and times of their own in three partitions; some transactions among them."""
    run_json(broker, "topics", "create", topic, "--partitions", "3", "--config", "retention.ms=-1")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for turn in range(4):
        producer.begin_transaction()
        for number in range(30):
            producer.produce(
                topic,
                f"{turn} {number:02}",
                key=None if number % 5 == 0 else str(number),
                partition=number % 3,
                timestamp=1_700_000_000_000 + number,
                headers=[("turn", str(turn)), ("none", None)],
            )
        producer.flush(30)
        if turn % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def committed(broker: Broker, topic: str) -> list[dict[str, Any]]:
    return [one for one in records(broker, topic) if one["value"][0] in "02"]


def test_a_copy_has_what_was_committed(broker: Broker, other: Broker) -> None:
    fill(broker, "orders")
    told = run_json(broker, "topics", "copy", "orders", "orders-2026")
    assert (told["records"], told["target"]) == (60, "orders-2026")
    assert records(broker, "orders-2026") == committed(broker, "orders")
    assert len(records(broker, "orders-2026")) == 60
    # To another cluster, which has the topic by the same name and settings then.
    away = ("--to-bootstrap", other.bootstrap_servers, "--compression", "zstd")
    assert run_json(broker, "topics", "copy", "orders", "orders", *away)["records"] == 60
    assert records(other, "orders") == committed(broker, "orders")
    with Client(other.bootstrap_servers) as client:
        assert len(client.partitions("orders")) == 3
        configs = describe_configs(client, TOPIC, "orders")
        assert [one.value for one in configs if one.name == "retention.ms"] == ["-1"]


def test_a_copy_that_was_stopped_goes_on(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(broker, "shipments")
    sent: list[int] = []
    real = send_batch

    def failing(client: Client, topic: str, partition: int, batch: bytes, acks: int) -> int:
        if len(sent) == 5:
            raise ClientError("The cluster is gone.")
        sent.append(partition)
        return real(client, topic, partition, batch, acks)

    monkeypatch.setattr(copying, "BATCH_RECORDS", 7)
    with monkeypatch.context() as patch:
        patch.setattr(admin_records, "send_batch", failing)
        stopped = run(broker, "topics", "copy", "shipments", "copied")
    assert stopped.exit_code == 1
    assert "The cluster is gone. 34 records were copied; --at 0:" in stopped.stderr
    where = stopped.stderr.split("--at ")[1].split(" ")[0]
    assert run_json(broker, "topics", "copy", "shipments", "copied", "--at", where)["records"] == 26
    assert records(broker, "copied") == committed(broker, "shipments")


def test_a_batch_whose_answer_was_lost_is_not_stored_twice(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "returns")
    real = send_batch

    def twice(client: Client, topic: str, partition: int, batch: bytes, acks: int) -> int:
        real(client, topic, partition, batch, acks)
        return real(client, topic, partition, batch, acks)

    monkeypatch.setattr(admin_records, "send_batch", twice)
    assert run_json(broker, "topics", "copy", "returns", "returned")["records"] == 60
    assert records(broker, "returned") == committed(broker, "returns")


def test_batches_that_the_target_does_not_take_are_sent_in_parts_and_a_stop_between_them_is_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "notes")
    run_json(broker, "topics", "create", "small", "--partitions", "3", "--config", "max.message.bytes=250")
    sent: list[int] = []
    real = send_batch

    def failing(client: Client, topic: str, partition: int, batch: bytes, acks: int) -> int:
        if len(sent) == 4:
            raise ClientError("The cluster is gone.")
        base_offset = real(client, topic, partition, batch, acks)
        sent.append(partition)
        return base_offset

    with monkeypatch.context() as patch:
        patch.setattr(admin_records, "send_batch", failing)
        stopped = run(broker, "topics", "copy", "notes", "small")
    assert 0 < int(stopped.stderr.split(" records were copied")[0].split()[-1]) < 60, stopped.stderr
    where = stopped.stderr.split("--at ")[1].split(" ")[0]
    run_json(broker, "topics", "copy", "notes", "small", "--at", where)
    assert records(broker, "small") == committed(broker, "notes")


def test_what_cannot_be_copied_is_refused_with_a_sentence(broker: Broker) -> None:
    fill(broker, "wide")
    run_json(broker, "topics", "create", "narrow", "--partitions", "2")
    for arguments, code, wanted in (
        (("wide", "wide"), 2, "cannot be copied to itself"),
        (("wide", "narrow"), 1, "has 2 partitions, and wide has 3"),
        (("nowhere", "new"), 1, "nowhere"),
        (("wide", "new", "--at", "nine"), 2, "--at takes PARTITION:OFFSET"),
        (("wide", "new", "--at", "9:0"), 1, "has no partition 9"),
        (("wide", "new", "--at", "0:99999999999999999999"), 1, "Partition 0 of wide ends at offset "),
    ):
        result = run(broker, "topics", "copy", *arguments)
        assert (result.exit_code, wanted in result.stderr) == (code, True), result.output
    with Client(broker.bootstrap_servers) as client:
        names = {topic.name for topic in client.metadata().topics}
        assert "new" not in names, "a copy that is refused creates nothing"
        assert Copy(client, "wide", client, "copy-of-wide", 0, {}).total > 60
