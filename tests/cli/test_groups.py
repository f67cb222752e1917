"""`penstock groups` and `penstock consume --group`, against a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import Broker
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


def test_offsets_are_moved(broker: Broker) -> None:
    run_json(broker, "topics", "create", "moved")
    run_json(broker, "produce", "moved", text="".join(f"{n}\n" for n in range(10)))
    consume(broker, "moved", "movers")
    for to, after in (("-3", 7), ("+1", 8), ("earliest", 0), ("latest", 10), ("4", 4), ("99", 10), ("@0", 0)):
        (row,) = run_json(broker, "groups", "reset-offsets", "movers", "--topic", "moved", "--to", to)
        assert row["after"] == after, to
    (row,) = run_json(
        broker, "groups", "reset-offsets", "movers", "--topic", "moved", "--to", "5", "--dry-run"
    )
    assert (row["before"], row["after"]) == (0, 5)
    assert consume(broker, "moved", "movers") == [str(n) for n in range(10)]


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
