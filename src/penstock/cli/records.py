"""`penstock produce`: records from standard input. And the reading that other commands share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator

import click

from penstock.admin.offsets import LATEST, list_offset
from penstock.admin.records import fetch
from penstock.cli.client import AnswerError, Client
from penstock.cli.options import cluster_options, connected
from penstock.cli.output import say, wants_json
from penstock.cli.sources import Source, record_of_json
from penstock.cli.starting_points import position
from penstock.wire.api.fetch import PartitionData
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.batch import BatchHeader, Record, build_batch, iter_batches, iter_records
from penstock.wire.buffers import Buffer
from penstock.wire.compression import CODEC_NAMES

WAIT_MS = 500
BATCH_BYTES = 512 * 1024
BATCH_RECORDS = 5000
ABORT = b"\0\0"
"""The type in the key of the control record that ends an aborted transaction."""


# -- produce ---------------------------------------------------------------------------------------------


@click.command("produce")
@cluster_options
@click.argument("topic")
@click.argument("values", nargs=-1)
@click.option("--file", "paths", metavar="FILE", multiple=True, type=click.Path(exists=True, dir_okay=False),
              help="Read this file instead of standard input; may be repeated.")  # fmt: skip
@click.option("--whole", is_flag=True, help="Each file, or all of standard input, is one record.")
@click.option("--input", "form", type=click.Choice(["lines", "json"]), default="lines", show_default=True,
              help="What a line is: a value, or a record as `consume --json` prints it.")  # fmt: skip
@click.option("--key", help="The key of every record.")
@click.option("--key-separator", metavar="TEXT", help="What separates key and value in each line of input.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record.")
@click.option("--partition", type=int, help="The partition; by key, else in turn, if not given.")
@click.option("--compression", type=click.Choice(CODEC_NAMES), default="none", show_default=True)
@click.option("--acks", type=click.Choice(["all", "1"]), default="all", show_default=True)
def produce(
    bootstrap: str,
    as_json: bool,
    topic: str,
    values: tuple[str, ...],
    paths: tuple[str, ...],
    whole: bool,
    form: str,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    acks: str,
) -> None:
    """Send VALUES, or the lines of files or of standard input, to TOPIC.

    \b
    penstock produce orders --key 7 '{"amount": 3}'
    penstock produce orders --file orders.txt --key-separator :
    penstock produce images --file a.png --file b.png --whole
    penstock consume orders --json | penstock produce copy --input json
    """
    if values and (paths or whole):
        raise click.UsageError("Values stand on the command line or come from files, not both.")
    if whole and form == "json":
        raise click.UsageError("--whole and --input json contradict each other.")
    fixed = tuple(_header(text) for text in headers)
    source = Source(paths, whole=whole)
    lines: Iterable[bytes] = (value.encode() for value in values) if values else source.lines()
    if form == "json":
        records = (record_of_json(line, number) for number, line in enumerate(lines, 1))
    else:
        records = (_record(line, key, key_separator, fixed) for line in lines)
    with connected(bootstrap) as client:
        partitions = client.partitions(topic, create=True)
        if partition is not None and partition not in partitions:
            raise click.UsageError(
                f"Topic {topic} has {len(partitions)} partitions; there is no {partition}."
            )
        sender = Sender(
            client, topic, partitions, CODEC_NAMES.index(compression), -1 if acks == "all" else int(acks)
        )
        with source.progress():
            for record in records:
                sender.send(record, partition)
            sender.flush()
    plural = "record" if sender.count == 1 else "records"
    fields = {"topic": topic, "records": sender.count, "last_offsets": sender.last_offsets}
    if wants_json(as_json) or not sys.stdin.isatty():
        print(json.dumps(fields), file=sys.stdout if wants_json(as_json) else sys.stderr)
    else:
        say(f"Sent {sender.count} {plural} to {topic}.", fields, as_json=False)


class Sender:
    """Collects records into batches, one per partition, and sends them to the leaders."""

    def __init__(self, client: Client, topic: str, partitions: list[int], codec: int, acks: int) -> None:
        self._client = client
        self._topic = topic
        self._partitions = partitions
        self._codec = codec
        self._acks = acks
        self._waiting: dict[int, list[Record]] = {}
        self._bytes = 0
        self._turn = 0
        self.count = 0
        self.last_offsets: dict[int, int] = {}

    def send(self, record: Record, partition: int | None) -> None:
        if partition is None:
            partition = self._choose(record.key)
        waiting = self._waiting.setdefault(partition, [])
        waiting.append(record)
        self.count += 1
        self._bytes += len(record.key or b"") + len(record.value or b"") + 20
        if self._bytes >= BATCH_BYTES or len(waiting) >= BATCH_RECORDS:
            self.flush()

    def flush(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        if waiting:
            self._turn += 1
        for partition, records in waiting.items():
            numbered = [
                Record(at, one.timestamp, one.key, one.value, one.headers) for at, one in enumerate(records)
            ]
            self._send_batch(partition, bytes(build_batch(numbered, codec=self._codec)), len(records))

    def _send_batch(self, partition: int, batch: bytes, count: int) -> None:
        base_offset = send_batch(self._client, self._topic, partition, batch, self._acks)
        self.last_offsets[partition] = base_offset + count - 1

    def _choose(self, key: bytes | None) -> int:
        """By key as every Kafka client does; without one, a partition per batch in turn."""
        if key is None:
            return self._partitions[self._turn % len(self._partitions)]
        return self._partitions[(murmur2(key) & 0x7FFFFFFF) % len(self._partitions)]


def send_batch(client: Client, topic: str, partition: int, batch: bytes, acks: int) -> int:
    """Send a batch to whoever leads the partition; the offset of its first record."""

    def attempt() -> int:
        leader = client.leader(topic, partition)
        data = TopicProduceData(
            name=topic,
            topic_id=client.topic_id(topic),
            partition_data=[PartitionProduceData(index=partition, records=batch)],
        )
        request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])
        answer = leader.ask(request, ProduceResponse)
        (result,) = answer.responses[0].partition_responses
        if result.error_code:
            what = f"Sending to partition {partition} of {topic!r}"
            raise AnswerError(result.error_code, what, result.error_message)
        return result.base_offset

    return client.retry(attempt)


def murmur2(data: bytes) -> int:
    """The hash by which Kafka's own clients choose partitions, so that keys go where they went before."""
    mask = 0xFFFFFFFF
    m = 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = h * m & mask ^ (k ^ k >> 24) * m & mask
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def _record(
    line: bytes, key: str | None, separator: str | None, headers: tuple[tuple[str, bytes | None], ...]
) -> Record:
    value: bytes | None = line
    chosen = None if key is None else key.encode()
    if separator is not None:
        before, found, after = line.partition(separator.encode())
        if found:
            chosen, value = before, after
    return Record(0, time.time_ns() // 1_000_000, chosen, value, headers)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    return name, value.encode() if equals else None


# -- reading ---------------------------------------------------------------------------------------------


class ReaderPositions:
    """Reads partitions from given positions, without a group."""

    def __init__(
        self, client: Client, topic: str, partitions: list[int], start: str, committed: bool
    ) -> None:
        self._client = client
        self._topic = topic
        self._committed = committed
        self._positions = {
            one: position(client, topic, one, start, committed=committed) for one in partitions
        }
        self._ends: dict[int, int] = {}
        if not partitions:
            raise click.UsageError(f"Topic {topic} has no partitions.")

    @property
    def positions(self) -> dict[int, int]:
        """The offsets at which reading goes on. They have passed markers and what is left out, too."""
        return dict(self._positions)

    def go_on_at(self, positions: dict[int, int]) -> None:
        """Start at these offsets instead, in the partitions named."""
        self._positions.update(positions)

    def records(self, *, follow: bool, pauses: bool = False) -> Iterator[tuple[int, Record] | None]:
        """The records as they come; with `pauses`, None after each request, to do something else then."""
        if not follow:
            self._ends = {
                one: list_offset(self._client, self._topic, one, LATEST, committed=self._committed)
                for one in self._positions
            }
        while follow or any(self._positions[one] < self._ends[one] for one in self._positions):
            for partition in list(self._positions):
                if follow or self._positions[partition] < self._ends[partition]:
                    yield from self._fetch(partition, WAIT_MS // len(self._positions) if follow else 0)
                    if pauses:
                        yield None

    def _fetch(self, partition: int, wait_ms: int) -> Iterator[tuple[int, Record]]:
        data = self._client.retry(lambda: self._ask(partition, wait_ms))
        position = self._positions[partition]
        aborted = Aborted(data)
        records = data.records or b""
        for at, header in iter_batches(records):
            if not aborted.skips(header, records, at):
                for record in iter_records(records, at):
                    if record.offset >= position:
                        self._positions[partition] = record.offset + 1
                        yield partition, record
            self._positions[partition] = max(self._positions[partition], header.last_offset + 1)

    def _ask(self, partition: int, wait_ms: int) -> PartitionData:
        position = self._positions[partition]
        return fetch(self._client, self._topic, partition, position, wait_ms, committed=self._committed)


class Aborted:
    """Which batches of one answer belong to aborted transactions, read in order."""

    def __init__(self, data: PartitionData) -> None:
        self._coming = sorted(
            ((one.first_offset, one.producer_id) for one in data.aborted_transactions or ()), reverse=True
        )
        self._open: set[int] = set()

    def skips(self, header: BatchHeader, data: Buffer, at: int) -> bool:
        """Is there nothing for a consumer in the batch at `at`?"""
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        if header.is_control:
            for record in iter_records(data, at):
                if record.key is not None and record.key[2:4] == ABORT:
                    self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open
