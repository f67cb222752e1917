"""kafka-transactions shows what is open and what is not, and with `penstock transactions` ends what hangs.

A transaction is left open by a client, and Kafka's TransactionsCommand lists it, describes it and its producer, and
finds that it does not hang. Then it is aborted by force, and its client is fenced.

Transactions that hang are made with brokers that do not ask the coordinator (transaction.partition.verification.enable
is false, which was Kafka's way before KIP-890) and a client that does not tell it: records lie in a partition, no
coordinator knows of them, and readers at read_committed stop in front of them. Both commands find them, and each
ends one.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from conformance import parts
from conformance.client import BY_NAME, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.cluster.processes import penstock
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.transactions import asking
from conformance.transactions.places import Place, place_named
from conformance.transactions.reading import read_topic
from conformance.wire.batches import TRANSACTIONAL, Item, batch
from conformance.wire.connection import Connection
from penstock.testing.waiting import Late, until

TOOL = "org.apache.kafka.tools.TransactionsCommand"
TOOL_TIMEOUT_S = 120.0
TOPIC, ID, DONE = "looked-at", "looker", "looked-before"
OPENED = 5
ENDED_WITHIN_S = 20.0
TRUSTING = {"transaction.partition.verification.enable": "false"}
HUNG_TOPIC, HUNG_ID = "hung", "forgetful"
HUNG_FOR_S = 3600
"""Longer than a transaction may take, so that both tools look at it by default."""
PLAIN, HUNG, BEHIND = b"before", b"hangs", b"behind"
NOT_YET = (14, 15, 16, 51)


class Wrong(Exception):
    """The tool did not say what it should."""


def transactions(place: Place, *options: str) -> list[dict[str, str]]:
    """What kafka-transactions prints: a row a dictionary."""
    java = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)
    command = [*java, TOOL, "--bootstrap-server", place.bootstrap, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise Wrong(f"kafka-transactions {' '.join(options)}: {done.stdout.strip()} {done.stderr.strip()}")
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.strip()]
    table = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    return [dict(zip(table[0], row, strict=False)) for row in table[1:]] if table else []


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Wrong(f"{what}: {found!r}, expected {wanted!r}")


def run(place: Place) -> None:
    place.create(TOPIC, 2)
    record = Record(None, b"open", partition=1).to_json()
    with closing(Session(BY_NAME["confluent-kafka"], place.bootstrap)) as done:
        done.step("open", id=DONE, timeout_ms=60_000)
        done.step("begin")
        done.step("send", topic=TOPIC, records=[record] * OPENED)
        done.step("commit")
    with closing(Session(BY_NAME["java"], place.bootstrap)) as session:
        session.step("open", id=ID, timeout_ms=600_000)
        session.step("begin")
        session.step("send", topic=TOPIC, records=[record])
        told = asking.described(place, ID)
        listed = {row["TransactionalId"]: row for row in transactions(place, "list")}
        expect(
            "states",
            {id: listed[id]["TransactionState"] for id in (ID, DONE)},
            {ID: "Ongoing", DONE: "CompleteCommit"},
        )
        expect("the producer of the open one", listed[ID]["ProducerId"], str(told["ProducerId"]))
        (row,) = transactions(place, "describe", "--transactional-id", ID)
        expect("the state", row["TransactionState"], "Ongoing")
        expect("its partitions", row["TopicPartitions"], f"{TOPIC}-1")
        expect("its time-out", row["TransactionTimeoutMs"], "600000")
        producers = transactions(place, "describe-producers", "--topic", TOPIC, "--partition", "1")
        started = {one["ProducerId"]: one["CurrentTransactionStartOffset"] for one in producers}
        # After the records and the marker of the other.
        expect("where it began", started[str(told["ProducerId"])], str(OPENED + 1))
        expect("that of the other", sorted(started.values()), sorted([str(OPENED + 1), "None"]))
        brokers = [str(at) for at in place.cluster.members] if place.cluster is not None else ["1"]
        for broker in brokers:
            # Everything that is open at all is looked at, and the coordinator knows of it.
            hanging = transactions(
                place, "find-hanging", "--broker-id", broker, "--max-transaction-timeout", "0"
            )
            expect(f"what hangs on broker {broker}", hanging, [])
        expect("the ends", asking.ends(place, TOPIC, 1), (OPENED + 1, OPENED + 2))
        transactions(place, "abort", "--topic", TOPIC, "--partition", "1", "--start-offset", str(OPENED + 1))
        stable = lambda: asking.ends(place, TOPIC, 1) == (OPENED + 3, OPENED + 3)  # noqa: E731
        until(stable, ENDED_WITHIN_S, "the abort of the one that was open")
        transactions(place, "forceTerminateTransaction", "--transactionalId", ID)
        expect("the state in the end", asking.state(place, ID) in ("Empty", "CompleteAbort"), True)
        try:
            session.step("commit")
        except ClientFailed as why:
            print(f"the client was told: {why.kind}", flush=True)
        else:
            raise Wrong("a transaction that was ended by force was committed")


def _begun(place: Place, id: str) -> tuple[int, int]:
    """A producer id and an epoch for it."""
    body = {"TransactionalId": id, "TransactionTimeoutMs": 60_000, "ProducerId": -1, "ProducerEpoch": -1}
    told: dict[str, int] = {}

    def begun() -> bool:
        with asking.coordinator(place, asking.TRANSACTION, id) as connection:
            told.update(connection.call("InitProducerId", 4, body))
        return told["ErrorCode"] not in NOT_YET

    until(begun, ENDED_WITHIN_S, "a producer", every_s=0.1)
    return told["ProducerId"], told["ProducerEpoch"]


def _hang(place: Place) -> dict[int, int]:
    """In both partitions a record that counts, one that hangs and one that waits; by partition, the producer."""
    producers: dict[int, int] = {}
    old = int((time.time() - HUNG_FOR_S) * 1000)
    for partition in (0, 1):
        id = f"{HUNG_ID}-{partition}"
        producers[partition], epoch = _begun(place, id)
        producer = {"producer_id": producers[partition], "producer_epoch": epoch, "sequence": 0}
        _write(place, partition, batch([Item(PLAIN, timestamp=old)]))
        _write(place, partition, batch([Item(HUNG, timestamp=old)], flags=TRANSACTIONAL, **producer), id)
        _write(place, partition, batch([Item(BEHIND, timestamp=old)]))
    return producers


def _write(place: Place, partition: int, records: bytes, id: str | None = None) -> None:
    """To whoever leads the partition."""
    written = {"Name": HUNG_TOPIC, "PartitionData": [{"Index": partition, "Records": records}]}
    body = {"TransactionalId": id, "Acks": -1, "TimeoutMs": 10_000, "TopicData": [written]}
    codes = []
    for host, port in place.addresses:
        with Connection(host, port) as connection:
            answer = connection.call("Produce", 9, body)["Responses"][0]["PartitionResponses"][0]
        codes.append(answer["ErrorCode"])
        if codes[-1] == 0:
            return
    raise Wrong(f"nobody took records of partition {partition}: {codes}")


def _penstock(place: Place, *options: str) -> Any:
    command = [penstock(), "transactions", *options, "--bootstrap", place.bootstrap, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise Wrong(f"penstock transactions {' '.join(options)}: {done.stdout.strip()} {done.stderr.strip()}")
    return json.loads(done.stdout)


def _found(place: Place) -> tuple[set[tuple[int, int, int]], set[tuple[int, int, int]]]:
    """What hangs by either tool: partition, producer and where it begins."""
    brokers = [str(at) for at in place.cluster.members] if place.cluster is not None else ["1"]
    rows = [row for broker in brokers for row in transactions(place, "find-hanging", "--broker-id", broker)]
    kafkas = {(int(row["Partition"]), int(row["ProducerId"]), int(row["StartOffset"])) for row in rows}
    ours = {
        (row["partition"], row["producer_id"], row["start_offset"])
        for row in _penstock(place, "find-hanging")
    }
    return kafkas, ours


def end_what_hangs(place: Place) -> None:
    place.create(HUNG_TOPIC, 2)
    producers = _hang(place)
    hanging = {(partition, producer, 1) for partition, producer in producers.items()}
    expect("what hangs, by kafka-transactions and by penstock", _found(place), (hanging, hanging))
    expect("the ends", [asking.ends(place, HUNG_TOPIC, at) for at in (0, 1)], [(1, 3), (1, 3)])
    where = ("--topic", HUNG_TOPIC, "--start-offset", "1")
    transactions(place, "abort", *where, "--partition", "0")
    _penstock(place, "abort", *where, "--partition", "1")
    for partition in (0, 1):
        stable = lambda at=partition: asking.ends(place, HUNG_TOPIC, at) == (4, 4)  # noqa: E731
        until(stable, ENDED_WITHIN_S, f"the last stable offset of partition {partition} at its end")
    expect("what hangs in the end", _found(place), (set(), set()))
    read = read_topic(place, HUNG_TOPIC, 2)
    expect("what counts", dict(read), {at: [(0, PLAIN), (2, BEHIND)] for at in (0, 1)})
    print("two transactions that hung were found by both tools, and each tool ended one", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.transactions.tools", description=summary)
    parser.add_argument(
        "--against", default="penstock", metavar="BROKERS", help="penstock or kafka (%(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        with interrupted_cleanly(), place_named(options.against) as place:
            run(place)
            problems = place.problems()
        with interrupted_cleanly(), place_named(options.against, TRUSTING) as place:
            end_what_hangs(place)
            problems += place.problems()
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, Late, Wrong, ClientFailed) as why:
        problems = [str(why)]
    for problem in problems:
        print(f"FAILED: {problem}")
    print(
        f"kafka-transactions list, describe, describe-producers, find-hanging, abort: {len(problems)} failures"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
