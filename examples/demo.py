"""A three-broker cluster, orders through a standard Kafka client, and a pipeline over the log itself.

Run by `make demo`. The pipeline is examples/orders.py: Spark reads the log straight from the store, adds
clean orders to a table, keeps revenue by window and country in a topic, and puts what is broken aside.
Everything that is started here is stopped at the end; store and table stay in `penstock-data/demo` until the
next run. With --keep (`make demo KEEP=1`) the cluster goes on serving until Ctrl-C, and an address is printed
where it can be looked at.
"""

import argparse
import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from penstock.testing.ports import consecutive

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent / "penstock-data" / "demo"
STORE = ROOT / "store"
PIPELINE = HERE / "orders.py"
TABLE = STORE / "pipelines" / "shop" / "tables" / "clean_orders"
PLOT = ROOT / "revenue.html"
PENSTOCK = Path(sys.executable).with_name("penstock")
TOPIC = "orders"
PARTITIONS, ORDERS, BROKEN_EVERY = 6, 100_000, 5_000
START_MS = 1_760_000_000_000
HOUR_MS = 3_600_000
COUNTRIES = ("DE", "FR", "JP", "BR", "US")
START_SECONDS = 30

console = Console()


@dataclass(frozen=True, slots=True)
class Cluster:
    process: subprocess.Popen[str]
    bootstrap: str
    """The addresses of its brokers."""
    page: str
    """Where the first broker answers HTTP."""


@contextmanager
def cluster(brokers: int) -> Iterator[Cluster]:
    """Run a cluster on one machine."""
    with consecutive(brokers) as port, consecutive(brokers) as http:
        listen, pages = f"127.0.0.1:{port}", f"127.0.0.1:{http}"
        options = ("--brokers", str(brokers), "--listen", listen, "--store", str(STORE), "--http", pages)
        command = [str(PENSTOCK), "start", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                for _ in range(brokers):
                    line = process.stdout.readline()
                    if not line:
                        raise SystemExit("the cluster did not start; its last words are above")
                    console.print(f"[dim]{line.strip()}[/]")
                addresses = ",".join(f"127.0.0.1:{port + number}" for number in range(brokers))
                yield Cluster(process, addresses, f"http://{pages}")
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


def penstock(*arguments: str | Path) -> None:
    """Run a command as a user does; its output goes where ours goes."""
    console.print(f"[bold]$ penstock {' '.join(_short(one) for one in arguments)}[/]", highlight=False)
    done = subprocess.run([PENSTOCK, *arguments], check=False)
    if done.returncode:
        raise SystemExit(f"penstock {arguments[0]} ended with {done.returncode}")


def messages(bootstrap: str, topic: str) -> list[Message]:
    """Everything that is in a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False})
    found = []
    for number in consumer.list_topics(topic, START_SECONDS).topics[topic].partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), START_SECONDS)
        consumer.assign([TopicPartition(topic, number, low)])
        while low < high:
            message = consumer.poll(START_SECONDS)
            if message is None or message.error():
                raise SystemExit(f"the topic {topic} could not be read: {message and message.error()}")
            found.append(message)
            low = (message.offset() or 0) + 1
    consumer.close()
    return found


def revenue(bootstrap: str) -> list[tuple[str, str, float]]:
    """Window, country and revenue, by the newest record of each in the topic."""
    newest = {}
    for message in messages(bootstrap, "revenue"):
        one = json.loads(message.value() or b"")
        newest[one["window"][11:16], one["country"]] = float(one["revenue"])
    return [(window, country, amount) for (window, country), amount in sorted(newest.items())]


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


def plot(rows: list[tuple[str, str, float]]) -> None:
    """The same as a page with a picture."""
    windows = sorted({window for window, _, _ in rows})
    colours = dict(zip(COUNTRIES, ("#264653", "#2a9d8f", "#e9c46a", "#f4a261", "#e76f51"), strict=True))
    most = max(amount for _, _, amount in rows)
    width, height, bar = 150, 260, 22
    parts = []
    for window, country, amount in rows:
        x = 60 + windows.index(window) * width + COUNTRIES.index(country) * (bar + 2)
        tall = height * amount / most
        parts.append(
            f'<rect x="{x}" y="{height + 20 - tall:.1f}" width="{bar}" height="{tall:.1f}"'
            f' fill="{colours[country]}"><title>{window} {country}: {amount:,.2f}</title></rect>'
        )
    parts += [
        f'<text x="{60 + at * width}" y="{height + 40}">{window}</text>' for at, window in enumerate(windows)
    ]
    parts += [
        f'<text x="{60 + at * 60}" y="{height + 65}" fill="{colours[country]}">{country}</text>'
        for at, country in enumerate(COUNTRIES)
    ]
    PLOT.write_text(
        "<!doctype html><meta charset=utf-8><title>revenue</title>"
        "<h1>Revenue by quarter of an hour and country</h1>"
        f'<svg width="{80 + len(windows) * width}" height="{height + 80}" font-family="sans-serif">'
        f"{''.join(parts)}</svg>"
    )


def check(rows: list[tuple[str, str, float]], broken: int, dead: int) -> int:
    """The table, the topic of revenue and the dead letters must add up; the rows of the table."""
    table = ds.dataset(TABLE).to_table(columns=["order", "amount"])
    total, by_window = pc.sum(table.column("amount")).as_py(), sum(amount for _, _, amount in rows)
    if table.num_rows != ORDERS - broken or dead != broken or abs(total - by_window) > 0.01:
        raise SystemExit(
            f"the table has {table.num_rows} rows instead of {ORDERS - broken}, {dead} dead letters instead"
            f" of {broken}, and revenue of {total:.2f} beside {by_window:.2f} in the topic"
        )
    return int(table.num_rows)


def _short(argument: str | Path) -> str:
    if isinstance(argument, Path) and argument.is_relative_to(Path.cwd()):
        return str(argument.relative_to(Path.cwd()))
    return str(argument)


def first_that_answers(*pages: str) -> str:
    """Nobody is sent to a page that is not there."""
    for page in pages:
        with contextlib.suppress(OSError), urllib.request.urlopen(page, timeout=START_SECONDS):
            return page
    raise SystemExit(f"{pages[0]} does not answer")


def keep(running: Cluster) -> None:
    """Serve until Ctrl-C, or until the cluster ends by itself."""
    page = first_that_answers(f"{running.page}/", f"{running.page}/metrics")
    console.print(f"Look at it: [bold]{page}[/] (clients: {running.bootstrap})", highlight=False)
    console.print("The cluster serves until Ctrl-C.")
    try:
        assert running.process.stdout is not None
        for line in running.process.stdout:  # A broker that died and came back says so.
            console.print(f"[dim]{line.strip()}[/]")
    except KeyboardInterrupt:
        console.print("Stopping.")
        return
    raise SystemExit("the cluster ended by itself; its last words are above")


def show_all(bootstrap: str) -> None:
    """What the pipeline made of the orders, checked."""
    rows = revenue(bootstrap)
    letters = messages(bootstrap, f"{TOPIC}.dead")
    count = check(rows, len(range(0, ORDERS, BROKEN_EVERY)), len(letters))
    console.print(f"{count:,} orders in the table; the topic revenue has the same sum by window:")
    show(rows)
    plot(rows)
    headers: Any = letters[0].headers()
    told = {name: value.decode() for name, value in headers}
    where = "/".join(told[f"__connect.errors.{one}"] for one in ("topic", "partition", "offset"))
    reason = told["__connect.errors.exception.message"]
    console.print(f"{len(letters)} dead letters, the first of {where}: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="go on serving until Ctrl-C")
    kept = parser.parse_args().keep
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    with cluster(3) as running:
        bootstrap = running.bootstrap
        seconds = produce(bootstrap)
        console.print(f"{ORDERS:,} orders written through librdkafka in {seconds:.1f} s")
        penstock("pipeline", "run", PIPELINE, "--once", "--bootstrap", bootstrap)
        show_all(bootstrap)
        console.print("lag of the table's group, as every Kafka tool sees it:")
        penstock("groups", "describe", "shop.clean_orders", "--bootstrap", bootstrap)
        penstock("pipeline", "status", "shop", "--bootstrap", bootstrap)
        console.print(f"The table is in {_short(TABLE)}, the picture in {_short(PLOT)}.")
        if kept:
            keep(running)
    if not kept:
        console.print("`make demo KEEP=1` keeps the cluster running and says where it can be looked at.")
    console.print(
        "Next: examples/orders.py is the whole pipeline; `.venv/bin/penstock start` runs a broker;"
        " README.md has more, ARCHITECTURE.md the how."
    )


if __name__ == "__main__":
    main()
