"""kafka-transactions shows what is open and what is not; transactions are found by their ids and producers.

A transaction is left open by a client, and Kafka's TransactionsCommand lists it, describes it and its producer, and
finds that it does not hang. Then it is aborted by force, and its client is fenced.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing

from conformance import parts
from conformance.client import BY_NAME, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.transactions import asking
from conformance.transactions.places import Place, place_named
from penstock.testing.waiting import Late, until

TOOL = "org.apache.kafka.tools.TransactionsCommand"
TOOL_TIMEOUT_S = 120.0
TOPIC, ID, DONE = "looked-at", "looker", "looked-before"
OPENED = 5
ENDED_WITHIN_S = 20.0


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
