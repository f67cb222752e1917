"""`penstock bench` measures a cluster, believes nothing it has not read back, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from penstock.admin.offsets import LATEST, list_offset
from penstock.admin.records import send_batch
from penstock.cli import bench
from penstock.cli.app import app
from penstock.client import Client
from penstock.testing import Broker
from penstock.testing.waiting import until


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 5)


def test_everything_is_measured_and_the_topic_is_gone() -> None:
    with Broker() as broker:
        arguments = [
            "bench",
            "--bootstrap",
            broker.bootstrap_servers,
            "--records",
            "1000",
            "--partitions",
            "3",
        ]
        ran = CliRunner().invoke(app, [*arguments, "--value-bytes", "100", "--compression", "zstd"])
        assert ran.exit_code == 0, ran.output
        rows = json.loads(ran.output)
        assert [(row["measure"], row["unit"]) for row in rows] == [
            ("acknowledgement p50", "ms"),
            ("acknowledgement p99", "ms"),
            ("end to end p50", "ms"),
            ("end to end p99", "ms"),
            ("written", "MB/s"),
            ("written", "records/s"),
            ("read", "MB/s"),
            ("read", "records/s"),
        ]
        assert all(row["value"] > 0 for row in rows)
        assert rows[-1]["of"] == "1,002 records of 100 B"
        with Client(broker.bootstrap_servers) as client:
            assert [topic.name for topic in client.metadata().topics if not topic.is_internal] == []


def test_what_was_not_sent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def changed(client: Client, topic: str, partition: int, batch: bytes, acks: int) -> int:
        sent.append(batch)
        other = bench.make_batch(2, 7, 0) if len(sent) == 12 else batch
        return send_batch(client, topic, partition, other, acks)

    monkeypatch.setattr(bench, "send_batch", changed)
    with Broker() as broker:
        arguments = ["bench", "--bootstrap", broker.bootstrap_servers, "--records", "10", "--partitions", "1"]
        ran = CliRunner().invoke(app, [*arguments, "--batch-bytes", "2000", "--value-bytes", "1000"])
    assert ran.exit_code == 1
    assert ran.output == "Error: Partition 0 has at offset 12 what was not sent there.\n"


def test_a_batch_that_the_cluster_refuses() -> None:
    with Broker(settings={"message.max.bytes": 1000}) as broker:
        ran = CliRunner().invoke(app, ["bench", "--bootstrap", broker.bootstrap_servers])
        assert ran.exit_code == 1
        assert "MESSAGE_TOO_LARGE" in ran.output
        assert len(ran.output.splitlines()) == 1
        with Client(broker.bootstrap_servers) as client:
            assert [topic.name for topic in client.metadata().topics if not topic.is_internal] == []


def test_ctrl_c_ends_it_and_leaves_nothing() -> None:
    many = ["--records", "100000000", "--value-bytes", "10", "--batch-bytes", "100"]
    with Broker() as broker, Client(broker.bootstrap_servers, 30.0) as client:
        command = [sys.executable, "-m", "penstock", "bench", "--bootstrap", broker.bootstrap_servers, *many]

        def written() -> bool:
            topics = [topic.name for topic in client.metadata(None).topics if topic.name]
            return bool(topics) and list_offset(client, topics[0], 3, LATEST) > 0

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
            signal.signal(signal.SIGINT, before)
            try:
                until(written, 60, "the last partition is written")
                running.send_signal(signal.SIGINT)
                assert running.wait(60) == 130
            finally:
                running.kill()
        assert client.metadata(None).topics == []
