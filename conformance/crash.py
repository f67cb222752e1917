"""kill -9 the broker again and again under idempotent producers, then read everything back.

In each round several producers of different clients send records with acks=all. The broker is killed at a
random moment meanwhile, and is started again on the same data; now and then it is killed once more while it
starts. The same producers go on until everything they sent is acknowledged. Each acknowledged record must
then be there exactly once, at the offset it was acknowledged with. Offsets have no holes, each producer's
records keep their order in each partition, and the high watermark never goes back.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from conformance import parts
from conformance.client import BY_NAME, CLIENTS, Client, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.server import Server, ServerFailed, interrupted_cleanly, serves
from conformance.target import add_against, server_named
from conformance.wire import batches
from conformance.wire.connection import Closed, Connection, Silent

TOPIC = "crash"
PARTITIONS = 3
LATEST = -1
METADATA_LISTS = 2  # a version of ListOffsets that every broker has
FETCH = 11
KILLED_WHILE_STARTING = 0.1
ANSWER_MAX_S = 60.0


class Broken(Exception):
    """A promise was broken; the message says which record and how."""


class Producer:
    """One client program, what it has sent, and what it was told."""

    def __init__(self, name: str, session: Session, seed: int) -> None:
        self.name = name
        self.session = session
        self.chance = random.Random(f"{seed} {name}")
        self.sent = 0
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.unplaced: set[bytes] = set()

    def round(self, count: int) -> None:
        """Send records and wait until all are acknowledged, however often the broker dies meanwhile."""
        records = []
        for number in range(self.sent, self.sent + count):
            padding = self.chance.randbytes(self.chance.randrange(1200))
            records.append(
                Record(
                    None, b"%s %d " % (self.name.encode(), number) + padding, partition=number % PARTITIONS
                )
            )
        self.sent += count
        for record, offset in zip(records, self.session.flood(TOPIC, records), strict=True):
            assert record.value is not None
            if offset < 0:  # acknowledged as a duplicate by a broker that could not tell the offset
                self.unplaced.add(record.value)
            elif (record.partition, offset) in self.acknowledged:
                raise Broken(f"{self.name} was given offset {offset} of partition {record.partition} twice")
            else:
                self.acknowledged[record.partition, offset] = record.value


class Reader:
    """Reads the new records of each partition and compares them with the answers that the producers got."""

    def __init__(self, server: Server, producers: list[Producer]) -> None:
        self.server = server
        self.producers = {producer.name: producer for producer in producers}
        self.next = dict.fromkeys(range(PARTITIONS), 0)
        self.watermark = dict.fromkeys(range(PARTITIONS), 0)
        self.last = {(name, partition): -1 for name in self.producers for partition in range(PARTITIONS)}
        self.records = 0

    def check_watermarks(self) -> None:
        with Connection(self.server.host, self.server.port, timeout_s=ANSWER_MAX_S) as connection:
            asked = [{"PartitionIndex": each, "Timestamp": LATEST} for each in range(PARTITIONS)]
            topics = [{"Name": TOPIC, "Partitions": asked}]
            answer = connection.call("ListOffsets", METADATA_LISTS, {"ReplicaId": -1, "Topics": topics})
        for each in answer["Topics"][0]["Partitions"]:
            partition, offset = each["PartitionIndex"], each["Offset"]
            if each["ErrorCode"] != 0:
                raise Broken(
                    f"partition {partition}: ListOffsets answers error {each['ErrorCode']} after the restart"
                )
            if offset < self.watermark[partition]:
                raise Broken(
                    f"partition {partition}: the high watermark went back to {offset}, "
                    f"from {self.watermark[partition]}"
                )
            self.watermark[partition] = offset

    def check_new(self) -> None:
        """Read up to the end; every acknowledged record must have been met by then."""
        with Connection(self.server.host, self.server.port, timeout_s=ANSWER_MAX_S) as connection:
            for partition in range(PARTITIONS):
                for offset, value in self._read(connection, partition):
                    self._meet(partition, offset, value)
        for producer in self.producers.values():
            if producer.acknowledged:
                (partition, offset), value = next(iter(producer.acknowledged.items()))
                raise Broken(
                    f"{value[:40]!r} was acknowledged at {offset} of partition {partition} and is not there"
                )
            if producer.unplaced:
                raise Broken(f"{next(iter(producer.unplaced))[:40]!r} was acknowledged and is nowhere")

    def _read(self, connection: Connection, partition: int) -> Iterator[tuple[int, bytes]]:
        while self.next[partition] < self.watermark[partition]:
            start = self.next[partition]
            asked = {"Partition": partition, "FetchOffset": start, "PartitionMaxBytes": 4 << 20}
            body = {"MaxWaitMs": 100, "MinBytes": 1, "Topics": [{"Topic": TOPIC, "Partitions": [asked]}]}
            answer = connection.call("Fetch", FETCH, body)["Responses"][0]["Partitions"][0]
            if answer["ErrorCode"] != 0:
                raise Broken(f"partition {partition}: Fetch at {start} answers error {answer['ErrorCode']}")
            for batch in batches.split(answer["Records"] or b""):
                yield from self._unpack(partition, batch)
            if self.next[partition] == start:
                raise Broken(
                    f"partition {partition}: nothing at {start} though the end is {self.watermark[partition]}"
                )

    def _unpack(self, partition: int, batch: dict[str, object]) -> Iterator[tuple[int, bytes]]:
        for offset, value in batches.records(batch):
            if offset < self.next[partition]:
                continue  # the batch began before what we asked for
            if offset > self.next[partition]:
                raise Broken(f"partition {partition}: a hole, {offset} follows {self.next[partition] - 1}")
            self.next[partition] = offset + 1
            yield offset, value

    def _meet(self, partition: int, offset: int, value: bytes) -> None:
        name, number = value.split(b" ", 2)[:2]
        producer = self.producers[name.decode()]
        self.records += 1
        if int(number) <= self.last[producer.name, partition]:
            raise Broken(
                f"partition {partition}: {name.decode()} {int(number)} at {offset} comes after a later one, "
                "or twice"
            )
        self.last[producer.name, partition] = int(number)
        told = producer.acknowledged.pop((partition, offset), None)
        if told is None and value in producer.unplaced:
            producer.unplaced.remove(value)
        elif told != value:
            raise Broken(
                f"partition {partition}: at {offset} is {value[:40]!r}, "
                f"acknowledged there was {told and told[:40]!r}"
            )


def one_round(
    server: Server, producers: list[Producer], pool: ThreadPoolExecutor, chance: random.Random, count: int
) -> float:
    """Send, kill in the middle, start again, wait for every acknowledgement; seconds the start took."""
    waiting = [pool.submit(producer.round, count) for producer in producers]
    time.sleep(chance.random() * 0.15)
    server.kill()
    if chance.random() < KILLED_WHILE_STARTING:
        server.launch()
        time.sleep(chance.random() * 0.3)
        server.kill()
    took = server.start()
    for each in waiting:
        each.result()
    return took


def run(options: argparse.Namespace, clients: list[Client]) -> tuple[int, int]:
    """Rounds done and records read back."""
    chance = random.Random(options.seed)
    with interrupted_cleanly(), ExitStack() as stack:
        server = stack.enter_context(server_named(options.against))
        producers = []
        for number in range(options.producers):
            client = clients[number % len(clients)]
            session = stack.enter_context(Session(client, server.bootstrap))
            producers.append(Producer(f"{client.name}-{number}", session, options.seed))
        producers[0].session.create(TOPIC, PARTITIONS)
        while not serves(server.host, server.port):
            time.sleep(0.05)
        reader = Reader(server, producers)
        pool = stack.enter_context(ThreadPoolExecutor(len(producers)))
        began = time.monotonic()
        for number in range(1, options.rounds + 1):
            took = one_round(server, producers, pool, chance, options.records)
            reader.check_watermarks()
            if number % options.check_every == 0 or number == options.rounds:
                reader.check_new()
                spent = time.monotonic() - began
                print(
                    f"round {number}: {reader.records} records as acknowledged, "
                    f"last start {took:.2f} s, {spent:.0f} s",
                    flush=True,
                )
        # Once more from the beginning of time, by a broker that was stopped in order.
        if options.against == "penstock":
            server.stop()
            server.start()
            reader.check_watermarks()
        return options.rounds, reader.records


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.crash", description=__doc__.splitlines()[0])
    add_against(parser)
    able = [client for client in CLIENTS if client.floods]
    names = [client.name for client in able]
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument(
        "--records", type=int, default=60, help="records a producer sends in a round (default 60)"
    )
    parser.add_argument(
        "--producers", type=int, default=4, help="how many, of the clients in turn (default 4)"
    )
    parser.add_argument(
        "--clients",
        nargs="+",
        choices=names,
        default=names,
        metavar="CLIENT",
        help=f"some of: {', '.join(names)}",
    )
    parser.add_argument("--check-every", type=int, default=20, help="rounds between readings (default 20)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        clients = [BY_NAME[name] for name in options.clients]
        for client in clients:
            client.program()
        rounds, records = run(options, clients)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except ServerFailed as why:
        print(f"crash: {why}", file=sys.stderr)
        return 2
    except (Broken, ClientFailed, Closed, Silent) as why:
        print(f"crash: FAILED with seed {options.seed}: {str(why) or repr(why)}")
        return 1
    print(f"{rounds} rounds of kill -9, {records} records, each once where it was acknowledged, none lost")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
