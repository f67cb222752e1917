"""`penstock groups` and `penstock consume --group`, against a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from penstock.admin.resetting import datetime_ms
from penstock.testing import Broker
from penstock.testing.waiting import until
from tests.cli.test_commands import run, run_json


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


def consume(broker: Broker, topic: str, group: str, *options: str) -> list[str]:
    result = run(broker, "consume", topic, "--group", group, *options)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_a_group_goes_on_where_it_stopped(broker: Broker) -> None:
    run_json(broker, "topics", "create", "lines", "--partitions", "2")
    for partition in (0, 1):
        text = "".join(f"{partition}-{number}\n" for number in range(20))
        run_json(broker, "produce", "lines", "--partition", str(partition), text=text)
    first = consume(broker, "lines", "readers", "--max", "13")
    assert len(first) == 13
    (described,) = run_json(broker, "groups", "describe", "readers")
    assert described["state"] == "Empty"
    assert sum(row["committed"] or 0 for row in described["partitions"]) == 13
    rest = consume(broker, "lines", "readers")
    assert sorted(first + rest) == sorted(f"{p}-{n}" for p in (0, 1) for n in range(20))
    (described,) = run_json(broker, "groups", "describe", "readers")
    assert [(row["committed"], row["end"], row["lag"]) for row in described["partitions"]] == [
        (20, 20, 0)
    ] * 2
    assert consume(broker, "lines", "readers") == []


def _is_past(time_ms: int) -> bool:
    return time.time_ns() // 1_000_000 > time_ms


def reset(broker: Broker, *options: str) -> list[tuple[int, int | None, int]]:
    """Partition, before and after, of each that is moved."""
    rows = run_json(broker, "groups", "reset-offsets", "movers", *options)
    return [(row["partition"], row["before"], row["after"]) for row in rows]


def test_offsets_are_moved_in_all_ways(broker: Broker, tmp_path: Path) -> None:
    run_json(broker, "topics", "create", "moved", "--partitions", "2")
    for number in range(10):
        run_json(broker, "produce", "moved", "--partition", "0", str(number))
        if number == 4:
            time_ms = run_json(broker, "consume", "moved", "--json", "--from", "4")["timestamp"] + 1
            until(partial(_is_past, time_ms), 10, "another millisecond")
    consume(broker, "moved", "movers")
    one = ("--topic", "moved:0")
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=2)))
    ways = [
        (("--to", "-3"), 7), (("--to", "+1"), 8), (("--to", "earliest"), 0), (("--to", "latest"), 10),
        (("--to", "4"), 4), (("--to", "99"), 10), (("--to", "@0"), 0), (("--to-offset", "6"), 6),
        (("--shift-by", "-2"), 4), (("--shift-by", "-100"), 0), (("--to-latest",), 10),
        (("--to-earliest",), 0), (("--to-datetime", moment.strftime("%Y-%m-%dT%H:%M:%S.%f")), 5),
        (("--to-current",), 5), (("--to-datetime", elsewhere.isoformat()), 5),
        (("--by-duration", "P1D"), 0), (("--by-duration", "PT0S"), 10), (("--to", moment.isoformat()), 5),
    ]  # fmt: skip
    stands = 10
    for way, after in ways:
        assert reset(broker, *one, *way) == [(0, stands, after)], way
        assert reset(broker, *one, *way, "--execute") == [(0, stands, after)], "the dry run moved nothing"
        stands = after
    plan = run(broker, "groups", "reset-offsets", "movers", "--all-topics", "--to-latest", "--export")
    assert plan.stdout.splitlines() == ["moved,0,10", "moved,1,0"]
    path = tmp_path / "plan.csv"
    path.write_text("moved,0,3\nmovers,moved,1,99\nsomebody,moved,0,9\n")
    assert reset(broker, "--from-file", str(path), "--execute") == [(0, 5, 3), (1, None, 0)]
    assert consume(broker, "moved", "movers") == [str(n) for n in range(3, 10)]


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1969-12-31T23:59:59.999", 0),
        ("1969-12-31T23:59:59.998Z", 0),
        ("0001-01-01T00:00:00+14:00", 0),
        ("1970-01-01T00:00:00.001", 1),
        ("2026-01-31T12:00:00+01:00", 1_769_857_200_000),
    ],
)
def test_times_before_1970_are_not_the_ends_of_a_partition(text: str, time_ms: int) -> None:
    assert datetime_ms(text) == time_ms


def test_groups_are_listed_and_deleted(broker: Broker) -> None:
    run_json(broker, "topics", "create", "listed")
    run_json(broker, "produce", "listed", text="x\n")
    consume(broker, "listed", "short-lived")
    rows = {row["group"]: row for row in run_json(broker, "groups", "list")}
    assert (rows["short-lived"]["state"], rows["short-lived"]["type"]) == ("Empty", "classic")
    assert run_json(broker, "groups", "delete", "short-lived") == {"deleted": "short-lived"}
    assert "short-lived" not in {row["group"] for row in run_json(broker, "groups", "list")}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("groups", "describe", "nobody"), "There is no group 'nobody'."),
        (("groups", "delete", "nobody"), "There is no group 'nobody'."),
        (
            ("groups", "reset-offsets", "g", "--topic", "nothing", "--to", "earliest"),
            "UNKNOWN_TOPIC_OR_PARTITION",
        ),
        (("groups", "reset-offsets", "g", "--topic", "errors", "--to", "soon"), "--to takes earliest"),
        (("groups", "reset-offsets", "g", "--topic", "errors", "--shift-by", "1"), "no committed offset"),
        (("groups", "reset-offsets", "g", "--topic", "errors", "--by-duration", "1h"), "PnDTnHnMnS"),
        (("groups", "reset-offsets", "g", "--topic", "errors:x", "--to-latest"), "TOPIC:0,1"),
        (("groups", "reset-offsets", "g", "--topic", "errors"), "in one way"),
        (("groups", "reset-offsets", "g", "--to-latest"), "which topics"),
        (
            ("groups", "reset-offsets", "g", "--topic", "errors", "--to-latest", "--to-offset", "1"),
            "in one way",
        ),
        (
            ("groups", "reset-offsets", "g", "--topic", "errors", "--to-latest", "--execute", "--dry-run"),
            "contradict",
        ),
        (
            ("groups", "reset-offsets", "g", "--topic", "errors", "--partition", "7", "--to", "0"),
            "no partition 7",
        ),
        (("consume", "errors", "--group", "g", "--partition", "0"), "use --group or --partition"),
    ],
)
def test_mistakes_are_sentences(broker: Broker, arguments: tuple[str, ...], sentence: str) -> None:
    run(broker, "topics", "create", "errors")
    result = run(broker, *arguments)
    assert result.exit_code != 0
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_a_group_that_began_at_the_end_misses_nothing_afterwards(broker: Broker) -> None:
    run_json(broker, "produce", "ended", "old", "older")
    assert consume(broker, "ended", "late", "--from", "end") == []
    run_json(broker, "produce", "ended", "new")
    assert consume(broker, "ended", "late", "--from", "end") == ["new"]
    assert consume(broker, "ended", "late") == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_what_could_not_be_written_is_not_committed(broker: Broker) -> None:
    run_json(broker, "produce", "unwritten", *(f"{number}" for number in range(10)))
    command = [sys.executable, "-m", "penstock", "consume", "unwritten", "--group", "unwritten"]
    command += ["--bootstrap", broker.bootstrap_servers]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

    def read(stdout: IO[str] | int, stderr: int | None = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, env=buffered, stdout=stdout, stderr=stderr, check=False, timeout=60)

    with open("/dev/full", "w") as full:
        failed = read(stdout=full, stderr=subprocess.PIPE)
    assert failed.returncode == 1
    assert failed.stderr.startswith(b"Error: The output cannot be written")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as nobody:
        assert read(stdout=nobody).returncode == 0
    assert read(stdout=subprocess.PIPE).stdout.split() == [b"%d" % number for number in range(10)]
    assert not read(stdout=subprocess.PIPE).stdout
