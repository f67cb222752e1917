"""Lines of the log: one for each event, in both forms, limited, and without tracebacks for what peers do."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import audit
from penstock.cli import logs


def record(message: str, *arguments: object, name: str = "penstock.x", error: BaseException | None = None) -> logging.LogRecord:  # fmt: skip  # noqa: E501
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord(name, logging.INFO, "x.py", 1, message, arguments, exc_info)


def test_values_behind_names_are_fields() -> None:
    made = record("closed a connection: %s (%d%%); peer=%s bytes=%d ratio=%.2f", "why", 5, "10.0.0.1", 7, 0.5)
    line = json.loads(logs.Json().format(made))
    assert line["message"] == "closed a connection: why (5%); peer=10.0.0.1 bytes=7 ratio=0.50"
    assert line["fields"] == {"peer": "10.0.0.1", "bytes": 7, "ratio": 0.5}
    assert (line["level"], line["logger"]) == ("info", "penstock.x")
    assert line["time"].endswith("Z")


def test_one_line_whatever_a_peer_sends() -> None:
    made = record("refused: %s; peer=%s", "a\nb\r\nFAKE line", "h")
    assert "\n" not in logs.Json().format(made)
    assert "\n" not in logs.Text().format(made)


def test_a_bug_has_its_traceback_in_the_same_line() -> None:
    try:
        raise RuntimeError("a bug")
    except RuntimeError as error:
        made = record("handler failed api=%s", "Fetch", error=error)
    line = logs.Json().format(made)
    assert "\n" not in line
    assert "RuntimeError: a bug" in json.loads(line)["traceback"]


def test_what_the_network_did_has_no_traceback() -> None:
    made = record("Fatal read error on socket transport\nprotocol: <x>", name="asyncio", error=ConnectionResetError("gone"))  # fmt: skip  # noqa: E501
    assert logs.without_peers_tracebacks(made)
    assert made.exc_info is None
    assert logs.Text().format(made).endswith("Fatal read error on socket transport: gone")
    bug = record("Exception in callback", name="asyncio", error=RuntimeError("bug"))
    logs.without_peers_tracebacks(bug)
    assert bug.exc_info is not None


def test_a_place_that_logs_without_end_is_limited_and_says_so() -> None:
    now = 100.0
    limit = logs.Limit(lambda: now)
    passed = sum(limit(record("closed; peer=%s", number)) for number in range(1000))
    assert passed == logs.BURST
    assert limit(record("another place"))
    now += logs.WINDOW_SECONDS
    after = record("closed; peer=%s", "again")
    assert limit(after)
    assert json.loads(logs.Json().format(after))["dropped"] == 1000 - logs.BURST
    assert logs.Text().format(after).endswith(f"(and {1000 - logs.BURST} more like it)")
    again = record("closed; peer=%s", "again")
    assert limit(again)
    assert "dropped" not in json.loads(logs.Json().format(again))


def test_changes_of_who_may_do_what_are_all_told() -> None:
    limit = logs.Limit(lambda: 100.0)
    passed = sum(
        limit(record("%s principal=%s", "added a rule", "a", name=audit.LOGGER)) for _ in range(1000)
    )
    assert passed == 1000


def test_set_up_writes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        logs.set_up("info", "json")
        logging.getLogger("penstock.test").info("it happened; count=%d", 3)
        sys.stderr.flush()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    line = json.loads(capsys.readouterr().err.strip().splitlines()[-1])
    assert (line["message"], line["fields"]) == ("it happened; count=3", {"count": 3})


def stderr_of(*arguments: str, **environment: str) -> list[dict[str, Any]]:
    """What a broker that does not start tells a machine."""
    command = [sys.executable, "-m", "penstock", "start", "--log-format=json", *arguments]
    more = {**os.environ, **environment}
    ran = subprocess.run(command, check=False, capture_output=True, timeout=60, env=more)
    assert ran.returncode in (1, 2)
    return [json.loads(line) for line in ran.stderr.splitlines()]


def test_why_a_broker_ends_is_an_event_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"--listen=127.0.0.1:{taken.getsockname()[1]}"
        for more in (("--store=memory://",), ("--brokers=2", f"--store={tmp_path}")):
            (event,) = stderr_of(listen, *more)
            assert event["level"] == "error"
            assert event["message"].endswith("is in use by another process; choose another with --listen.")
    properties = tmp_path / "server.properties"
    properties.write_text(
        "process.roles=broker\nbroker.rack=\u00e9\nnum.partitions=\u00e9\n", encoding="utf-8"
    )
    alone, wrong = stderr_of(f"--config={properties}", PYTHONIOENCODING="ascii")
    assert alone["message"].startswith("left alone, because only Kafka's own parts read them: process.roles")
    assert "Invalid value \u00e9 for configuration num.partitions" in wrong["message"]


def test_what_nobody_expected_is_an_event_too() -> None:
    program = (
        "import threading; from penstock.cli import logs; logs.set_up('error', 'json')\n"
        "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join(); [][1]"
    )
    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=60)
    events = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [one["message"] for one in events] == [
        "ended unexpectedly: division by zero",
        "ended unexpectedly: list index out of range",
    ]
    assert all("Traceback" in one["traceback"] for one in events)
    assert ran.returncode == 1
