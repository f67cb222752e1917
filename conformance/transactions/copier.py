"""Kafka's TransactionalMessageCopier: chains of copies under kills, as in Kafka's own system test.

Each copier copies one partition of a topic in transactions, some of which it aborts at random, and so does a second
stage with the copies. Meanwhile brokers and copiers are killed and started again. In the end every record is in the
last topic exactly once, for readers at read_committed.
"""

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from conformance import parts
from conformance.client import BY_NAME, Session
from conformance.clients.protocol import Record
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.transactions import asking
from conformance.transactions.places import Place, place_named
from conformance.transactions.programs import Program, bounce, difference
from conformance.transactions.reading import read_topic
from penstock.testing.waiting import Late, until

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
PARTITIONS = 2
TRANSACTION_RECORDS = 50
TIMEOUT_MS = 10_000
STARTED_WITHIN_S = 60.0
COPIED_WITHIN_S = 300.0
STABLE_WITHIN_S = 30.0


def group(source: str, partition: int) -> str:
    return f"copiers-{source}-{partition}"


def copier(place: Place, partition: int, source: str, target: str) -> Program:
    classpath = parts.kafka_classpath(parts.KAFKA_NEWEST)
    return Program(
        f"the copier of {source}-{partition}",
        classpath,
        COPIER,
        *("--input-topic", source, "--input-partition", str(partition), "--output-topic", target),
        *("--broker-list", place.bootstrap, "--consumer-group", group(source, partition)),
        *(
            "--transactional-id",
            f"copier-{source}-{partition}",
            "--transaction-size",
            str(TRANSACTION_RECORDS),
        ),
        *("--transaction-timeout", str(TIMEOUT_MS), "--enable-random-aborts", "--use-group-metadata"),
        *("--max-messages", str(left(place, source, partition))),
    )


def left(place: Place, source: str, partition: int) -> int:
    """How many records are to be copied yet. The tool takes offsets for records, and would wait for as many more
    as there are markers."""
    told: list[int | str] = []

    def decided() -> bool:
        told.append(asking.committed(place, group(source, partition), source, partition))
        return isinstance(told[-1], int)

    until(decided, STABLE_WITHIN_S, f"the offset of {group(source, partition)}", every_s=0.2)
    start = int(told[-1])
    return sum(offset >= start for offset, _ in read_topic(place, source, PARTITIONS)[partition])


def again(place: Place, one: Program, source: str, partition: int) -> bool:
    """Start a copier anew, if anything is left for it."""
    one.kill()
    rest = left(place, source, partition)
    if rest:
        one.restart("--max-messages", str(rest))
    return rest > 0


def copy(place: Place, source: str, target: str, rounds: int) -> None:
    """One stage: `Late` if it does not end."""
    with ExitStack() as stack:
        copiers = [stack.enter_context(copier(place, at, source, target)) for at in range(PARTITIONS)]
        for one in copiers:
            one.await_said("ProcessLoop", STARTED_WITHIN_S)
        for number in range(rounds):
            time.sleep(1.5)  # as long as some transactions take
            if number % 2 == 0:
                bounce(place, broker=1 + number // 2 % 3)
            else:
                again(place, copiers[0], source, 0)
        deadline = time.monotonic() + COPIED_WITHIN_S
        for partition, one in enumerate(copiers):
            # A copier gives up when it is fenced, or when a broker is away for too long.
            while True:
                one.await_end(max(1.0, deadline - time.monotonic()))
                if not again(place, one, source, partition):
                    break


def run(place: Place, records: int, rounds: int) -> list[str]:
    topics = ("copied", "copied-once", "copied-twice")
    for topic in topics:
        place.create(topic, PARTITIONS)
    values = [b"record %d" % number for number in range(records)]
    with Session(BY_NAME["confluent-kafka"], place.bootstrap) as session:
        for partition in range(PARTITIONS):
            chosen = [Record(None, value) for value in values[partition::PARTITIONS]]
            session.produce(topics[0], partition, "none", chosen)
    problems = []
    for source, target in itertools.pairwise(topics):
        copy(place, source, target, rounds)
        asking.await_stable(place, target, PARTITIONS, STABLE_WITHIN_S)
        read = read_topic(place, target, PARTITIONS)
        found = Counter(value for records_read in read.values() for _, value in records_read)
        problems += [f"{target}: {problem}" for problem in difference(values, found)]
        print(f"{target}: {found.total()} records", flush=True)
        if problems:
            break
    return problems + place.problems()


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.transactions.copier", description=summary)
    parser.add_argument(
        "--against", default="penstock", metavar="BROKERS", help="penstock or kafka (%(default)s)"
    )
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=6, help="kills in each stage (default: 6)")
    parser.add_argument("--short", action="store_true", help="20,000 records, two kills in each stage")
    options = parser.parse_args(arguments)
    records, rounds = (20_000, 2) if options.short else (options.records, options.rounds)
    try:
        with interrupted_cleanly(), place_named(options.against) as place:
            problems = run(place, records, rounds)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, Late) as why:
        problems = [str(why)]
    for problem in problems:
        print(f"FAILED: {problem}")
    print(f"TransactionalMessageCopier: {records} records through two stages, {len(problems)} failures")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
