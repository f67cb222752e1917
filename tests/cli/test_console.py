"""`penstock console`: a process of its own beside any cluster, and what it refuses to do."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.app import app
from penstock.testing import Broker


def test_it_serves_until_it_is_told_to_stop() -> None:
    with Broker() as broker:
        command = [sys.executable, "-m", "penstock", "console", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(
            [*command, "--bootstrap", broker.bootstrap_servers], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                found = re.fullmatch(r"penstock console is at (http://\S+)\n", process.stdout.readline())
                assert found
                with urllib.request.urlopen(f"{found[1]}/brokers", timeout=30) as answer:
                    assert b"1 broker of the cluster" in answer.read()
            finally:
                process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "0.0.0.0:0"], "Others can reach 0.0.0.0:0"),
        (["--listen", "8080"], "--listen takes HOST:PORT, not '8080'."),
        (["--command-config", "nowhere"], "nowhere cannot be read"),
        (["--listen", "127.0.0.1:0", "--registry", "here"], "A schema registry is a URL such as"),
    ],
)
def test_what_it_refuses(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["console", *arguments])
    assert result.exit_code != 0
    assert sentence in result.output


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("nothing")
    result = CliRunner().invoke(
        app, ["console", "--listen", "127.0.0.1:0", "--tls", str(tmp_path / "key.pem")]
    )
    assert result.exit_code == 1
    assert "key.pem" in result.output
