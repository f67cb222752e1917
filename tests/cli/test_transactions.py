"""`penstock transactions`, `consume --isolation` and what the doctor makes of transactions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from penstock.admin.doctor.transactions import (
    GRACE_MS,
    TIMEOUT_MAX_MS,
    Held,
    Known,
    Opened,
    Transactions,
    hanging,
    standing_still,
)
from penstock.admin.transactions import open_transactions
from penstock.cli.client import Client
from penstock.testing import Broker
from penstock.wire.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from penstock.wire.api.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from penstock.wire.api.list_transactions import TransactionState as ListedState
from penstock.wire.api.metadata import MetadataResponse, MetadataResponseBroker
from tests.cli.test_commands import run, run_json
from tests.spark.transactional import abort, commit, data
from tests.spark.workshop import Workshop

HANGING = 4242


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Its partition has an ended transaction of each kind, and one that no coordinator ever heard of."""
    store = str(tmp_path / "store")
    with Workshop(store) as workshop:
        workshop.create("t")
        workshop.append("t", data(7, 0, b"kept"), commit(7), data(7, 1, b"dropped"), abort(7))
        workshop.append("t", data(HANGING, 0, b"hangs"))
        workshop.write("t", [b"plain"])
    with Broker(store=store, settings={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


def test_isolation_of_consume(broker: Broker) -> None:
    everything = "kept\ndropped\nhangs\nplain\n"
    assert run(broker, "consume", "t").stdout == everything
    assert run(broker, "consume", "t", "--isolation", "read_uncommitted").stdout == everything
    for committed in (("--isolation", "read_committed"), ("--committed",)):
        assert run(broker, "consume", "t", *committed).stdout == "kept\n"
    # Whoever starts at the end starts where the open transaction does, and so misses nothing of it.
    assert run(broker, "consume", "t", "--committed", "--from", "end").stdout == ""
    result = run(broker, "consume", "t", "--committed", "--isolation", "read_uncommitted")
    assert result.exit_code == 2 and "contradict each other" in result.stderr


def test_a_group_has_no_lag_for_markers(broker: Broker) -> None:
    ended = ("transactions", "abort", "--topic", "t", "--partition", "0", "--producer-id", str(HANGING))
    run_json(broker, *ended, "--force")
    read = run(broker, "consume", "t", "--group", "g", "--isolation", "read_committed")
    assert read.stdout == "kept\nplain\n"
    (group,) = run_json(broker, "groups", "describe", "g")
    assert [(row["committed"], row["end"], row["lag"]) for row in group["partitions"]] == [(7, 7, 0)]


def test_producers_of_a_partition(broker: Broker) -> None:
    rows = run_json(broker, "transactions", "producers", "t", "0")
    assert [(row["producer_id"], row["start_offset"], row["last_sequence"]) for row in rows] == [
        (7, None, 1),
        (HANGING, 4, 0),
    ]


def test_abort_in_one_partition(broker: Broker) -> None:
    arguments = ["transactions", "abort", "--topic", "t", "--partition", "0", "--force"]
    done = run_json(broker, *arguments, "--start-offset", "4")
    assert (done["producer_id"], done["aborted"]["start_offset"]) == (HANGING, 4)
    assert run(broker, "consume", "t", "--committed").stdout == "kept\nplain\n"
    result = run(broker, *arguments, "--start-offset", "4")
    assert result.exit_code == 1
    assert "No transaction that begins at offset 4 is open in partition 0 of 't'." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("abort --topic t --partition 0", "Give --start-offset or --producer-id."),
        ("abort --topic t --partition 9 --producer-id 1", "Topic 't' has no partition 9."),
        ("abort --topic nobody --partition 0 --producer-id 1", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("abort --topic t --partition 0 --producer-id 1", "No transaction of producer 1 is open"),
        ("producers t 3", "Topic 't' has no partition 3."),
        ("find-hanging --partition 3", "--partition is one of a --topic."),
    ],
)
def test_mistakes(broker: Broker, arguments: str, sentence: str) -> None:
    result = run(broker, "transactions", *arguments.split())
    assert result.exit_code
    assert sentence in result.stderr and "Traceback" not in result.output


@pytest.fixture
def coordinated(broker: Broker) -> Iterator[Broker]:
    """Two transactional ids besides: one has committed and aborted, one is at it."""
    assert run_json(broker, "cluster", "upgrade")["level"] >= 3
    run_json(broker, "topics", "create", "u")
    ended, at_it = (
        Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": one, "log_level": 0})
        for one in ("ended", "at-it")
    )
    for producer in (ended, at_it):
        producer.init_transactions(30)
    for end in (ended.commit_transaction, ended.abort_transaction):
        ended.begin_transaction()
        ended.produce("u", b"x")
        assert ended.flush(20) == 0
        end(30)
    at_it.begin_transaction()
    at_it.produce("u", b"y")
    assert at_it.flush(20) == 0
    yield broker
    at_it.abort_transaction(30)


def test_list_and_describe(coordinated: Broker) -> None:
    rows = run_json(coordinated, "transactions", "list")
    assert [(row["id"], row["coordinator"], row["state"]) for row in rows] == [
        ("at-it", 1, "Ongoing"),
        ("ended", 1, "CompleteAbort"),
    ]
    for options, ids in (
        (("--state", "Ongoing"), ["at-it"]),
        (("--pattern", "en.*"), ["ended"]),
        (("--longer-than", "3600000"), []),
        (("--producer-id", str(rows[1]["producer_id"])), ["ended"]),
    ):
        assert [row["id"] for row in run_json(coordinated, "transactions", "list", *options)] == ids
    (row,) = run_json(coordinated, "transactions", "describe", "at-it")
    assert (row["state"], row["timeout_ms"], row["partitions"]) == (
        "Ongoing",
        60_000,
        [{"topic": "u", "partition": 0}],
    )
    assert row["open_ms"] >= 0
    (row,) = run_json(coordinated, "transactions", "describe", "ended")
    assert (row["open_ms"], row["partitions"]) == (None, [])
    for arguments, sentence in (
        ("describe nobody", "There is no transactional id 'nobody'."),
        ("list --state Nope", "No transaction has a state Nope."),
        ("list --pattern (", "INVALID_REGULAR_EXPRESSION"),
    ):
        assert sentence in run(coordinated, "transactions", *arguments.split()).stderr


def test_what_hangs_is_found_and_ended_and_what_does_not_is_left_alone(coordinated: Broker) -> None:
    (hanging,) = run_json(coordinated, "transactions", "find-hanging", "--older-than", "0")
    assert (hanging["topic"], hanging["producer_id"], hanging["start_offset"]) == ("t", HANGING, 4)
    report = json.loads(run(coordinated, "doctor").stdout)
    problems = {one["check"]: one["problems"] for one in report["checks"] if one["problems"]}
    assert list(problems) == ["no transaction hangs"]
    cure = problems["no transaction hangs"][0].rpartition(": penstock ")[2]
    (open_one,) = [
        row for row in run_json(coordinated, "transactions", "producers", "u", "0") if row["start_offset"]
    ]
    refused = run(
        coordinated, "transactions", "abort", "--topic", "u", "--partition", "0",
        "--producer-id", str(open_one["producer_id"]),
    )  # fmt: skip
    assert refused.exit_code == 1
    assert "This transaction does not hang: it is that of 'at-it', which is Ongoing" in refused.stderr
    assert run_json(coordinated, *cure.split())["producer_id"] == HANGING
    assert run_json(coordinated, "transactions", "find-hanging", "--older-than", "0") == []
    assert run(coordinated, "doctor").exit_code == 0


# The order of questions.


class Cluster:
    """A broker that is asked about producers twice and about transactions in between, from a script."""

    def __init__(self, first: Sequence[int], then: Sequence[int], known: dict[int, str]) -> None:
        """The producers with a transaction open at the first and at the second question; the transactional
        ids of producers whose coordinator names the partition."""
        self._answers = [first, then]
        self._known = known
        self.asked: list[str] = []

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args: self  # any(), broker(1), leader("t", 0)

    def retry(self, attempt: Any) -> Any:
        return attempt()

    def leader_id(self, _topic: str, _partition: int) -> int:
        return 1

    def version_of(self, request: Any) -> int:
        return int(request.max_version)

    def metadata(self, _topics: object = None) -> MetadataResponse:
        return MetadataResponse(brokers=[MetadataResponseBroker(node_id=1)])

    def ask(self, request: Any, _response: object, newest: int | None = None) -> Any:
        self.asked.append(type(request).__name__)
        match request:
            case DescribeProducersRequest():
                states = [
                    ProducerState(producer_id=one, current_txn_start_offset=one * 10)
                    for one in self._answers.pop(0)
                ]
                partition = PartitionResponse(partition_index=0, active_producers=states)
                return DescribeProducersResponse(topics=[TopicResponse(name="t", partitions=[partition])])
            case ListTransactionsRequest():
                listed = [ListedState(id, producer, "Ongoing") for producer, id in self._known.items()]
                return ListTransactionsResponse(transaction_states=listed)
            case FindCoordinatorRequest():
                assert request.key_type == 1
                return FindCoordinatorResponse(node_id=1)
            case DescribeTransactionsRequest():
                (id,) = request.transactional_ids
                (producer,) = [one for one, name in self._known.items() if name == id]
                state = TransactionState(
                    transactional_id=id, producer_id=producer, topics=[TopicData(topic="t", partitions=[0])]
                )
                return DescribeTransactionsResponse(transaction_states=[state])
        raise AssertionError(request)


def found(cluster: Cluster) -> list[tuple[int, str | None]]:
    return [
        (one.producer.producer_id, one.state.transactional_id if one.state is not None else None)
        for one in open_transactions(cast(Client, cluster), [("t", 0)])
    ]


def test_a_transaction_that_ends_between_two_questions_does_not_hang() -> None:
    assert found(Cluster([1, 2, 3], [3, 4], {1: "one"})) == [(1, "one"), (3, None)]


def test_nothing_is_asked_twice_if_all_are_known() -> None:
    cluster = Cluster([1], [], {1: "one"})
    assert found(cluster) == [(1, "one")]
    assert cluster.asked.count("DescribeProducersRequest") == 1
    assert found(Cluster([], [], {})) == []


# The doctor.


def seen(held: Held, now_ms: int = 0) -> Transactions:
    return Transactions([held], now_ms)


def test_a_transaction_that_hangs_is_told_with_its_cure() -> None:
    known = Opened(1, 5, 0, Known("one", "Ongoing", 0, 60_000))
    (problem,) = hanging(seen(Held("t", 3, 5, 9, [known, Opened(8, 7, 0, None)])))
    assert "Producer 8 has a transaction open in partition 3 of 't' from offset 7 on" in problem
    assert "penstock transactions abort --topic t --partition 3 --start-offset 7" in problem
    assert list(hanging(seen(Held("t", 3, 5, 9, [known])))) == []
    assert list(hanging(Transactions(unknown="Nobody may."))) == [
        "Which transactions are open could not be asked: Nobody may."
    ]


def test_a_stable_offset_that_stands_still() -> None:
    limit = 60_000 + GRACE_MS
    late = Held("t", 0, 5, 90, [Opened(1, 5, 0, Known("one", "Ongoing", 0, 60_000))])
    before = seen(late._replace(end=80))
    (problem,) = standing_still(seen(late, limit + 1), before)
    assert "stands at 5, 85 offsets before the high watermark, which moves on" in problem
    assert "the transaction of 'one' is Ongoing after 2 minutes, and its time-out is 60000 ms" in problem
    (problem,) = standing_still(seen(late, limit + 1), seen(late))
    assert "which stands still now" in problem
    assert list(standing_still(seen(late, limit), before)) == [], "its coordinator may still end it"
    moved = seen(late._replace(stable=4))
    assert list(standing_still(seen(late, limit + 1), moved)) == [], "it is another transaction than before"
    (problem,) = standing_still(seen(late._replace(opened=[]), 0), before)
    assert "no producer has a transaction open there" in problem


def test_a_cluster_that_cannot_say_whose_transaction_it_is() -> None:
    there = Held("t", 0, 5, 90, [Opened(1, 5, 0, None)], served=False)
    assert list(hanging(seen(there))) == []
    assert list(standing_still(seen(there, TIMEOUT_MAX_MS), Transactions())) == []
    (problem,) = standing_still(seen(there, TIMEOUT_MAX_MS + 1), Transactions())
    assert "producer 1 wrote there 15 minutes ago" in problem


def test_a_transaction_whose_marker_was_lost_is_told_as_such(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Workshop(str(store)) as workshop:
        workshop.create("t")
        workshop.append("t", data(HANGING, 0, b"kept"))
        log = store / "wal" / "1" / "1" / f"{0:020}"
        before = log.stat().st_size
        workshop.append("t", commit(HANGING))
        after = log.stat().st_size
        workshop.write("t", [b"plain"])
    contents = log.read_bytes()
    log.write_bytes(contents[:before] + bytes(after - before) + contents[after:])
    with Broker(store=str(store)) as running:
        assert run(running, "consume", "t", "--committed").stdout == ""
        report = json.loads(run(running, "doctor").stdout)
        (problem,) = {one["check"]: one["problems"] for one in report["checks"]}["no transaction hangs"]
    assert f"Producer {HANGING} has a transaction open in partition 0 of 't' from offset 0 on" in problem
    assert "But what was at offset 1 is lost, and the marker that ended it may have been there" in problem
