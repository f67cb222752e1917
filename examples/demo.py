"""A three-broker cluster, orders through a standard Kafka client, and a Spark pipeline over the log itself.

Run by `make demo`. Spark reads the log straight from the store, writes a clean table as Parquet and counts
revenue by window and country. Everything that is started here is stopped at the end; the table stays in
`penstock-data/demo` until the next run.
"""

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent / "penstock-data" / "demo"
STORE, TABLE, CHECKPOINTS = ROOT / "store", ROOT / "orders-table", ROOT / "checkpoints"
PENSTOCK = Path(sys.executable).with_name("penstock")
TOPIC, GROUP = "orders", "revenue-pipeline"
PARTITIONS, ORDERS, BROKEN_EVERY = 6, 100_000, 5_000
START_MS = 1_760_000_000_000
HOUR_MS = 3_600_000
COUNTRIES = ("DE", "FR", "JP", "BR", "US")
START_SECONDS = 30

console = Console()


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free now."""
    while True:
        first = random.randrange(20_000, 50_000)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue


@contextmanager
def cluster(brokers: int) -> Iterator[str]:
    """Run a cluster on one machine; gives the addresses of its brokers."""
    port = free_ports(brokers)
    address = f"127.0.0.1:{port}"
    command = [
        str(part) for part in (PENSTOCK, "start", "--brokers", brokers, "--listen", address, "--store", STORE)
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for _ in range(brokers):
                line = process.stdout.readline()
                if not line:
                    raise SystemExit("the cluster did not start; its last words are above")
                console.print(f"[dim]{line.strip()}[/]")
            yield ",".join(f"127.0.0.1:{port + number}" for number in range(brokers))
        finally:
            process.send_signal(signal.SIGTERM)


def events() -> Iterator[tuple[str, str]]:
    """An hour of orders by customer; now and then one that is not JSON."""
    chance = random.Random(7)
    for number in range(ORDERS):
        at = START_MS + number * HOUR_MS // ORDERS
        customer = f"customer-{chance.randrange(2_000)}"
        order = {
            "order": number,
            "customer": customer,
            "country": chance.choices(COUNTRIES, (5, 4, 3, 2, 6))[0],
            "amount": round(chance.lognormvariate(3, 0.8), 2),
            "at": at,
        }
        yield customer, "not json" if number % BROKEN_EVERY == 0 else json.dumps(order)


def produce(bootstrap: str) -> float:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
        created.result(START_SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    refused: list[str] = []
    started = time.perf_counter()
    for key, value in events():
        producer.produce(
            TOPIC,
            key=key,
            value=value,
            on_delivery=lambda error, _: refused.append(str(error)) if error else None,
        )
        producer.poll(0)
    producer.flush(60)
    if refused:
        raise SystemExit(f"{len(refused)} records were refused, the first with: {refused[0]}")
    return time.perf_counter() - started


def pipeline(bootstrap: str) -> tuple[list[tuple[str, str, float]], int, float]:
    """Read the log in Spark; the revenue by window and country, the rows of the table, the seconds taken."""
    import penstock.spark
    from penstock.spark.java import prepare_java

    prepare_java()
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    penstock.spark.register(spark)
    started = time.perf_counter()
    orders = (
        spark.readStream.format("penstock")
        .option("store", str(STORE))
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("group.id", GROUP)
        .load()
        .select(
            "partition",
            "offset",
            f.from_json(
                f.col("value").cast("string"),
                "order long, customer string, country string, amount double, at long",
            ).alias("order"),
        )
        .where("order.order is not null")
        .select("partition", "offset", "order.*", f.timestamp_millis(f.col("order.at")).alias("time"))
    )
    table = (
        orders.writeStream.format("parquet")
        .option("path", str(TABLE))
        .option("checkpointLocation", str(CHECKPOINTS / "table"))
        .trigger(availableNow=True)
        .start()
    )
    table.awaitTermination()
    clean = spark.read.parquet(str(TABLE))
    revenue = (
        clean.groupBy(f.window("time", "15 minutes"), "country")
        .agg(f.sum("amount").alias("revenue"))
        .orderBy("window", "country")
        .select(f.date_format("window.start", "HH:mm"), "country", "revenue")
    )
    rows = [(row[0], row[1], row[2]) for row in revenue.collect()]
    count = clean.count()
    took = time.perf_counter() - started
    spark.stop()
    return rows, count, took


def show(rows: list[tuple[str, str, float]]) -> None:
    most = max(revenue for _, _, revenue in rows)
    table = Table(title="revenue by quarter of an hour and country")
    for column in ("window", "country", "revenue", ""):
        table.add_column(column, justify="right" if column == "revenue" else "left")
    last = ""
    for window, country, revenue in rows:
        bar = "█" * round(40 * revenue / most)
        table.add_row("" if window == last else window, country, f"{revenue:,.2f}", f"[cyan]{bar}[/]")
        last = window
    console.print(table)


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    with cluster(3) as bootstrap:
        seconds = produce(bootstrap)
        console.print(f"{ORDERS:,} orders written through librdkafka in {seconds:.1f} s")
        rows, count, took = pipeline(bootstrap)
        broken = len(range(0, ORDERS, BROKEN_EVERY))
        if count != ORDERS - broken:
            raise SystemExit(f"the table has {count} rows instead of {ORDERS - broken}")
        console.print(
            f"{count:,} orders in the table after {took:.1f} s of Spark; {broken} broken ones left out"
        )
        show(rows)
        console.print("lag of the pipeline's group, as every Kafka tool sees it:")
        subprocess.run([PENSTOCK, "groups", "describe", GROUP, "--bootstrap", bootstrap], check=True)
    console.print(
        f"The table is in {TABLE.relative_to(Path.cwd()) if TABLE.is_relative_to(Path.cwd()) else TABLE}."
    )
    console.print(
        "Next: `.venv/bin/penstock start` runs a broker; README.md has more, ARCHITECTURE.md the how."
    )


if __name__ == "__main__":
    main()
