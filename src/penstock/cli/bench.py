"""`penstock bench`: how fast is this cluster, from here?

It does the same against any cluster that speaks the protocol, so two of them can be compared from one
machine. It makes batches once and sends them as they are, and compares the read batches as bytes. So it
measures the cluster and the way to it, not the making of records.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from random import Random
from threading import Event
from typing import Any, NamedTuple

import click

from penstock.admin.offsets import LATEST, list_offset
from penstock.admin.records import fetch, send_batch
from penstock.admin.topics import create, delete
from penstock.cli.client import Client, ClientError
from penstock.cli.options import cluster_options, connected
from penstock.cli.output import show, wants_json
from penstock.wire.batch import HEADER_SIZE, Record, build_batch, iter_batches
from penstock.wire.compression import CODEC_NAMES

ROUNDS = 500
"""Requests by which a latency is measured."""
POLL_MS = 500
PAUSE_SECONDS = 0.002
SILENCE_SECONDS = 30.0
COLUMNS = {"measure": "MEASURE", "value": "VALUE", "unit": "UNIT", "of": "OF"}

Step = Callable[[int], object]


class Load(NamedTuple):
    """The load that is sent: the same batch again and again, to each of the partitions."""

    topic: str
    partitions: int
    batch: bytes
    records: int
    """In one batch."""
    value_bytes: int
    batches: int
    """To each partition."""
    acks: int

    @property
    def total(self) -> int:
        return self.partitions * self.batches * self.records

    @property
    def megabytes(self) -> float:
        return self.total * self.value_bytes / 1e6


@click.command()
@cluster_options
@click.option(
    "--records", type=click.IntRange(1), default=200_000, show_default=True, help="How many to send."
)
@click.option(
    "--value-bytes", type=click.IntRange(0, 2**30), default=1024, show_default=True, help="In a value."
)
@click.option("--batch-bytes", type=click.IntRange(1, 2**30), default=256 * 1024, show_default=True,
              help="Of values in a batch, which has at least one.")  # fmt: skip
@click.option("--partitions", type=click.IntRange(1, 64), default=4, show_default=True,
              help="Of the topic; each has a connection of its own.")  # fmt: skip
@click.option("--compression", type=click.Choice(CODEC_NAMES), default="none", show_default=True)
@click.option("--acks", type=click.Choice(["all", "1"]), default="all", show_default=True)
def bench(
    bootstrap: str,
    as_json: bool,
    records: int,
    value_bytes: int,
    batch_bytes: int,
    partitions: int,
    compression: str,
    acks: str,
) -> None:
    """Measure a cluster, Penstock's or any other: latency, and what it takes and gives a second.

    A topic is created for it, everything that was sent is read back and compared, and the topic is deleted.

    \b
    penstock bench --bootstrap 127.0.0.1:9092
    """
    in_batch = max(1, min(batch_bytes // max(value_bytes, 1), -(-records // partitions)))
    load = Load(
        topic=f"penstock-bench-{uuid.uuid4().hex}",
        partitions=partitions,
        batch=make_batch(in_batch, value_bytes, CODEC_NAMES.index(compression)),
        records=in_batch,
        value_bytes=value_bytes,
        batches=-(-records // (partitions * in_batch)),
        acks=-1 if acks == "all" else int(acks),
    )
    steps = 2 * ROUNDS + 2 * load.partitions * load.batches
    plain = wants_json(as_json)
    with connected(bootstrap) as client, topic_for(client, load), progress(steps, hidden=plain) as step:
        rows = [
            *acknowledgements(bootstrap, load, step),
            *end_to_end(bootstrap, load, step),
            *throughput(bootstrap, load, step),
        ]
    show(rows, COLUMNS, as_json=plain)


def make_batch(records: int, value_bytes: int, codec: int) -> bytes:
    """Values that a codec makes about half as long, as it does those of most people."""
    chance = Random(1)
    now_ms = time.time_ns() // 1_000_000
    values = (chance.randbytes(value_bytes // 2).ljust(value_bytes, b".") for _ in range(records))
    numbered = [Record(at, now_ms, None, value) for at, value in enumerate(values)]
    return bytes(build_batch(numbered, codec=codec))


@contextlib.contextmanager
def topic_for(client: Client, load: Load) -> Iterator[None]:
    create(client, load.topic, partitions=load.partitions)
    try:
        client.partitions(load.topic)
        yield
    finally:
        delete(client, [load.topic])


def acknowledgements(bootstrap: str, load: Load, step: Step) -> Iterator[dict[str, Any]]:
    """One record a request, one request at a time."""
    single = make_batch(1, load.value_bytes, 0)
    took = []
    with prepared(bootstrap, load) as client:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            send_batch(client, load.topic, 0, single, load.acks)
            took.append(time.perf_counter() - began)
            step(1)
    yield from quantiles("acknowledgement", took)


def end_to_end(bootstrap: str, load: Load, step: Step) -> Iterator[dict[str, Any]]:
    """From the sending of a record to its arrival at somebody who waits for it."""
    single = make_batch(1, load.value_bytes, 0)
    took = []
    arrivals: SimpleQueue[float] = SimpleQueue()
    with (
        prepared(bootstrap, load) as writer,
        prepared(bootstrap, load) as reader,
        threads(1) as (pool, ended),
    ):
        start = list_offset(writer, load.topic, 0, LATEST)
        watching = pool.submit(_watch, reader, load.topic, start, arrivals, ended)
        for _ in range(ROUNDS):
            time.sleep(PAUSE_SECONDS)  # The one who waits has asked by then.
            began = time.perf_counter()
            send_batch(writer, load.topic, 0, single, load.acks)
            try:
                took.append(arrivals.get(timeout=SILENCE_SECONDS) - began)
            except Empty:
                watching.result()
                raise
            step(1)
    yield from quantiles("end to end", took)


@contextlib.contextmanager
def threads(count: int) -> Iterator[tuple[ThreadPoolExecutor, Event]]:
    """Threads, and what tells them that nobody waits for their work any more, as after Ctrl-C."""
    ended = Event()
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool, ended
        finally:
            ended.set()


def _watch(reader: Client, topic: str, start: int, arrivals: SimpleQueue[float], ended: Event) -> None:
    """Tell when each of the records from `start` on arrives."""
    position = start
    while position < start + ROUNDS:
        position = _next(reader, topic, position, ended)
        arrivals.put(time.perf_counter())


def _next(reader: Client, topic: str, position: int, ended: Event) -> int:
    """Wait for records at `position`; the offset after the first of them."""
    deadline = time.monotonic() + SILENCE_SECONDS
    while time.monotonic() < deadline and not ended.is_set():
        for _at, header in iter_batches(fetch(reader, topic, 0, position, POLL_MS).records or b""):
            return header.last_offset + 1
    raise ClientError(f"What was sent did not arrive within {SILENCE_SECONDS:.0f} s.")


def throughput(bootstrap: str, load: Load, step: Step) -> Iterator[dict[str, Any]]:
    """As fast as it goes, on a connection for each partition: written, then read."""
    with contextlib.ExitStack() as stack, threads(load.partitions) as (pool, ended):
        clients = [stack.enter_context(prepared(bootstrap, load)) for _ in range(load.partitions)]
        starts = [list_offset(one, load.topic, at, LATEST) for at, one in enumerate(clients)]
        for measure, work in (("written", _write), ("read", _read)):
            began = time.perf_counter()
            under_way = [
                pool.submit(work, one, load, at, start, step, ended)
                for at, (one, start) in enumerate(zip(clients, starts, strict=True))
            ]
            for one in under_way:
                one.result()
            seconds = time.perf_counter() - began
            of = f"{load.total:,} records of {load.value_bytes:,} B"
            yield row(measure, load.megabytes / seconds, "MB/s", of)
            yield row(measure, load.total / seconds, "records/s", of)


def _write(client: Client, load: Load, partition: int, _start: int, step: Step, ended: Event) -> None:
    for _ in range(load.batches):
        if ended.is_set():
            return
        send_batch(client, load.topic, partition, load.batch, load.acks)
        step(1)


def _read(client: Client, load: Load, partition: int, start: int, step: Step, ended: Event) -> None:
    """Everything that `_write` sent, which must be there, in order."""
    position, end = start, start + load.batches * load.records
    sent = memoryview(load.batch)[HEADER_SIZE:]
    deadline = time.monotonic() + SILENCE_SECONDS
    while position < end and not ended.is_set():
        data = fetch(client, load.topic, partition, position, POLL_MS).records or b""
        view = memoryview(data)
        for at, header in iter_batches(data):
            if header.base_offset != position or view[at + HEADER_SIZE : at + header.size] != sent:
                raise ClientError(f"Partition {partition} has at offset {position} what was not sent there.")
            position = header.last_offset + 1
            deadline = time.monotonic() + SILENCE_SECONDS
            step(1)
        if time.monotonic() > deadline:
            raise ClientError(f"Partition {partition} ends at offset {position}, and {end} was acknowledged.")


@contextlib.contextmanager
def prepared(bootstrap: str, load: Load) -> Iterator[Client]:
    """A client of its own that knows the leaders already."""
    with connected(bootstrap) as client:
        client.partitions(load.topic)
        yield client


def quantiles(measure: str, seconds: Sequence[float]) -> Iterator[dict[str, Any]]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    for name, cut in (("p50", cuts[49]), ("p99", cuts[98])):
        yield row(f"{measure} {name}", cut * 1000, "ms", f"{len(seconds):,} requests of one record")


def row(measure: str, value: float, unit: str, of: str) -> dict[str, Any]:
    return {"measure": measure, "value": round(value, 2 if value < 100 else None), "unit": unit, "of": of}


@contextlib.contextmanager
def progress(steps: int, *, hidden: bool) -> Iterator[Step]:
    if hidden:
        yield lambda _count: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("measuring", total=steps)
        yield lambda count: bar.advance(task, count)
