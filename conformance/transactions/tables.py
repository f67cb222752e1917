"""Compacted topics written in transactions: each key comes down to its last committed value, whoever was killed.

Several producers update keys of their own in transactions over all partitions: some are aborted, some are left open by
a producer that is dropped and begun anew, some updates are tombstones. The cleaner runs all the time, brokers are
killed, and readers at read_committed begin again and again at offset 0. A reader never sees an aborted update, nor a
key's updates out of their order. In the end each key has exactly its last committed update, aborted ones are cleaned
away, and Spark reads the same rows from the store when no broker runs.
"""

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance import parts
from conformance.cluster.streams import QUIET
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.spark.driver import session
from conformance.transactions import asking
from conformance.transactions.places import Place, place_named, place_on_sick_s3
from conformance.transactions.programs import bounce
from conformance.transactions.reading import messages
from penstock.testing.waiting import Late, until

TOPIC = "table"
PARTITIONS = 4
WORKERS = 4
KEYS = 40
"""Of each producer."""
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "1048576",
    "segment.ms": "1000",
    "delete.retention.ms": "1000",
}
BROKER_SETTINGS = {"log.cleaner.backoff.ms": "300"}
PADDING = b"." * 200
TIMEOUT_MS = 10_000
CALL_S = 20.0
STABLE_WITHIN_S = 45.0
CLEANED_WITHIN_S = 120.0

Row = tuple[int, bytes, int | None]
"""An offset, a key, and the number of its update; None for a tombstone."""


@dataclass(slots=True)
class Update:
    number: int
    gone: bool
    outcome: str = "unknown"


@dataclass(slots=True)
class Worker:
    """One producer after another of the same transactional id."""

    name: str
    place: Place
    chance: random.Random
    updates: dict[bytes, list[Update]] = field(default_factory=lambda: defaultdict(list))
    transactions: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failure: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                self._live()
        except BaseException as why:  # what ends a thread is told in the end
            self.failure = why

    def _live(self) -> None:
        """Until the producer fails, or is dropped with its transaction open."""
        producer = Producer(
            {
                "bootstrap.servers": self.place.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": TIMEOUT_MS,
                "linger.ms": 1,
                **QUIET,
            }
        )
        try:
            producer.init_transactions(CALL_S)
            while not self.ended.is_set() and self._transact(producer):
                pass
        except KafkaException:
            self.transactions["failed"] += 1

    def _transact(self, producer: Producer) -> bool:
        producer.begin_transaction()
        written = [self._write(producer) for _ in range(self.chance.choice((1, 3, 10)))]
        way = self.chance.choices(("commit", "abort", "drop"), (70, 25, 5))[0]
        if way == "commit":
            # Nobody knows the outcome of a commit that failed, so it stays unknown then.
            producer.commit_transaction(CALL_S)
            self._decide(written, "committed")
            return True
        producer.flush(CALL_S)
        self._decide(written, "aborted")
        if way == "abort":
            producer.abort_transaction(CALL_S)
        return way == "abort"

    def _write(self, producer: Producer) -> Update:
        key = b"%s/%d" % (self.name.encode(), self.chance.randrange(KEYS))
        update = Update(len(self.updates[key]), self.chance.random() < 0.1)
        self.updates[key].append(update)
        value = None if update.gone else b"%d %s" % (update.number, PADDING)
        partition = hash(key[-1]) % PARTITIONS
        while True:
            try:
                producer.produce(TOPIC, value, key, partition)
                return update
            except BufferError:
                producer.poll(0.1)

    def _decide(self, written: list[Update], outcome: str) -> None:
        self.transactions[outcome] += 1
        for update in written:
            update.outcome = outcome


def rows(place: Place, committed: bool = True) -> list[list[Row]]:
    """What each partition holds up to its end, by librdkafka."""
    found: list[list[Row]] = [[] for _ in range(PARTITIONS)]
    for message in messages(place, TOPIC, PARTITIONS, committed):
        found[message.partition() or 0].append(_row(message))
    return found


def _row(message: Message) -> Row:
    key, value = message.key(), message.value()
    return message.offset() or 0, bytes(key or b""), None if value is None else int(value.split()[0])


@dataclass(slots=True)
class Book:
    """All updates that anybody sent, and what must be seen of them."""

    workers: list[Worker]

    def updates(self, key: bytes) -> list[Update]:
        return self.workers[int(key.split(b"/")[0].removeprefix(b"worker-"))].updates[key]

    def wrong(self, found: Sequence[Sequence[Row]]) -> Iterator[str]:
        """What a reader at read_committed must never see, at whatever time it reads."""
        for partition, read in enumerate(found):
            last: dict[bytes, int] = {}
            for offset, key, number in read:
                if number is None:
                    continue
                if self.updates(key)[number].outcome == "aborted":
                    yield f"offset {offset} of partition {partition} has the aborted update {number} of {key!r}"
                if number <= last.get(key, -1):
                    yield f"update {number} of {key!r} comes after its update {last[key]}"
                last[key] = number

    def final(self, found: Sequence[Sequence[Row]]) -> Iterator[str]:
        """What the table says once everything is decided, and what it should say."""
        table: dict[bytes, int | None] = {}
        for read in found:
            table.update((key, number) for _, key, number in read)
        for worker in self.workers:
            for key, updates in worker.updates.items():
                allowed = _allowed(updates)
                if table.get(key) not in allowed:
                    yield f"{key!r} has the update {table.get(key)}, where {sorted(allowed, key=str)} may be"


def _allowed(updates: Sequence[Update]) -> set[int | None]:
    """The last committed update, or one whose outcome nobody was told and that came after it."""
    allowed: set[int | None] = set()
    for update in reversed(updates):
        if update.outcome == "aborted":
            continue
        allowed.add(None if update.gone else update.number)
        if update.outcome == "committed":
            return allowed
    return {*allowed, None}


def spark_rows(store: str, environment: Mapping[str, str]) -> list[list[Row]]:
    """The same from the store alone."""
    os.environ.update(environment)  # Spark's processes inherit it.
    found: list[list[Row]] = [[] for _ in range(PARTITIONS)]
    with tempfile.TemporaryDirectory() as home:
        spark = session(Path(home))
        try:
            frame = spark.read.format("penstock").option("store", store).option("subscribe", TOPIC).load()
            chosen = frame.select("partition", "offset", "key", "value").orderBy("partition", "offset")
            for partition, offset, key, value in chosen.collect():
                number = None if value is None else int(bytes(value).split()[0])
                found[partition].append((offset, bytes(key), number))
        finally:
            spark.stop()
    return found


def play(place: Place, kills: int, chance: random.Random) -> tuple[Book, list[str]]:
    """Write under kills and read along; who wrote what, and what a reader must not have seen."""
    book = Book([Worker(f"worker-{at}", place, random.Random(chance.random())) for at in range(WORKERS)])
    threads = [threading.Thread(target=worker.run) for worker in book.workers]
    problems: list[str] = []
    readings = 0
    for thread in threads:
        thread.start()
    try:
        with place.weather():
            for number in range(kills):
                deadline = time.monotonic() + 4
                while time.monotonic() < deadline:
                    problems += book.wrong(rows(place))
                    readings += 1
                bounce(place, broker=1 + number % 3)
                print(f"kill {number + 1}, {readings} times read from the beginning", flush=True)
    finally:
        for worker in book.workers:
            worker.ended.set()
        for thread in threads:
            thread.join()
    problems += [f"{worker.name}: {worker.failure!r}" for worker in book.workers if worker.failure]
    return book, problems


def run(place: Place, kills: int, seed: int) -> list[str]:
    replicas = 1 if place.cluster is None else 3
    admin = AdminClient({"bootstrap.servers": place.bootstrap, **QUIET})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, replicas, config=TOPIC_SETTINGS)])[TOPIC].result(30)
    book, problems = play(place, kills, random.Random(seed))
    asking.await_stable(place, TOPIC, PARTITIONS, STABLE_WITHIN_S)
    end = rows(place)
    problems += [*book.wrong(end), *book.final(end)]
    wanted = sum(len(worker.updates) for worker in book.workers)

    def cleaned() -> bool:
        """A roll needs a write, and what was last written is not cleaned: two updates of a key may be there."""
        _nudge(place)
        return sum(len(read) for read in rows(place, committed=False)) <= 2 * (wanted + PARTITIONS)

    until(cleaned, CLEANED_WITHIN_S, "a table without its old and aborted updates", every_s=1.0)
    end = [[row for row in read if row[1] != b"nudge"] for read in rows(place)]
    problems += [*book.wrong(end), *book.final(end)]
    if place.cluster is not None:
        place.cluster.kill()
        read = [
            [row for row in part if row[1] != b"nudge"]
            for part in spark_rows(place.cluster.store, place.environment)
        ]
        problems += [f"Spark: {problem}" for problem in (*book.wrong(read), *book.final(read))]
    updates = sum(len(each) for worker in book.workers for each in worker.updates.values())
    outcomes: dict[str, int] = defaultdict(int)
    for worker in book.workers:
        for outcome, count in worker.transactions.items():
            outcomes[outcome] += count
    print(f"{updates} updates of {wanted} keys in {dict(outcomes)} transactions, {kills} kills")
    return problems + place.problems()


def _nudge(place: Place) -> None:
    producer = Producer({"bootstrap.servers": place.bootstrap, **QUIET})
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, None, b"nudge", partition)
    producer.flush(CALL_S)


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.transactions.tables", description=summary)
    parser.add_argument(
        "--against", default="penstock", metavar="BROKERS", help="penstock or kafka (%(default)s)"
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="three kills")
    parser.add_argument("--sick", action="store_true", help="on an S3 server that is sick all the while")
    options = parser.parse_args(arguments)
    try:
        chosen = (
            place_on_sick_s3(BROKER_SETTINGS, options.seed)
            if options.sick
            else place_named(options.against, BROKER_SETTINGS)
        )
        with interrupted_cleanly(), chosen as place:
            problems = run(place, 3 if options.short else options.kills, options.seed)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, Late) as why:
        problems = [str(why)]
    for problem in problems[:20]:
        print(f"FAILED with seed {options.seed}: {problem}")
    if not problems:
        print("each key has its last committed update, and nobody saw an aborted one")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
