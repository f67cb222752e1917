"""What --command-config says is handed to every source and sink of a pipeline, and shown to nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import pipeline as commands
from penstock.pipeline.runner import RunOptions

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PROPERTIES = {
    "bootstrap.servers": "elsewhere:9092",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": f'{MODULE} required username="u" password="hush";',
}


def options(bootstrap: str | None) -> RunOptions:
    return RunOptions(bootstrap=bootstrap, store="s", file="f.py", location="l", properties=PROPERTIES)


def test_options_of_spark_are_those_of_clients_with_their_prefix() -> None:
    given = options("here:9092").to_brokers()
    assert given["kafka.security.protocol"] == "SASL_SSL"
    assert given["kafka.sasl.jaas.config"] == PROPERTIES["sasl.jaas.config"]
    assert given["kafka.bootstrap.servers"] == "here:9092"
    assert "kafka.bootstrap.servers" not in options(None).to_brokers()
    assert "hush" not in repr(options("here:9092"))


def test_the_file_reaches_whoever_asks_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in PROPERTIES.items()))
    asked: list[Any] = []

    def find_store(bootstrap: str, security: Any) -> str:
        asked.append((bootstrap, security.mechanism, security.user))
        return str(tmp_path)

    monkeypatch.setattr("penstock.spark.brokers.find_store", find_store)
    told = ["list", "--bootstrap", "b:9092", "--command-config", str(file)]
    CliRunner().invoke(commands.pipeline, told)
    assert asked == [("b:9092", "SCRAM-SHA-512", "u")]
