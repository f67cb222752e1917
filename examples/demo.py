"""A broker, a standard Kafka client, records in and out.

Run by `make demo`. Everything it starts is stopped and its data removed when it ends.
"""

import time

from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from penstock.testing import Broker

RECORDS = 10_000
TOPIC = "orders"


def produce(bootstrap: str) -> float:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    failures: list[str] = []
    started = time.perf_counter()
    for number in range(RECORDS):
        producer.produce(
            TOPIC,
            key=f"customer-{number % 100}",
            value=f'{{"order": {number}, "amount": {number * 7 % 500}}}',
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        producer.poll(0)
    producer.flush(30)
    if failures:
        raise SystemExit(f"{len(failures)} records were refused, the first with: {failures[0]}")
    return time.perf_counter() - started


def consume(bootstrap: str) -> tuple[list[tuple[int, bytes, bytes]], float]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    rows: list[tuple[int, bytes, bytes]] = []
    started = time.perf_counter()
    while len(rows) < RECORDS:
        for message in consumer.consume(1000, timeout=10):
            if message.error():
                raise SystemExit(f"reading failed: {message.error()}")
            rows.append((message.offset(), message.key(), message.value()))
    elapsed = time.perf_counter() - started
    consumer.close()
    return rows, elapsed


def main() -> None:
    console = Console()
    started = time.perf_counter()
    with Broker() as broker:
        console.print(f"broker serving on {broker.bootstrap_servers} after {time.perf_counter() - started:.2f} s")
        wrote = produce(broker.bootstrap_servers)
        rows, read = consume(broker.bootstrap_servers)
        if [offset for offset, _, _ in rows] != list(range(RECORDS)):
            raise SystemExit("the offsets read back are not 0, 1, 2, ...")
        table = Table(title=f"{TOPIC}: {RECORDS:,} records written in {wrote:.2f} s, read back in {read:.2f} s")
        for column in ("offset", "key", "value"):
            table.add_column(column)
        for offset, key, value in [*rows[:3], *rows[-3:]]:
            table.add_row(str(offset), key.decode(), value.decode())
        console.print(table)
    console.print("next: `penstock start` runs a broker on 127.0.0.1:9092; ARCHITECTURE.md says how it works")


if __name__ == "__main__":
    main()
