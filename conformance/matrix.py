"""Every client writes, every client reads the same bytes back, by assignment and without a group.

Each writer creates its own topics, one for each codec it has, and sends keys and values that are null,
empty, binary and large, headers and timestamps where its protocol version has them. Each reader then reads
every topic and every field is compared, offsets included; a second read starts in the middle of a
compressed batch.
"""

import argparse
import random
import string
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace

from conformance import parts
from conformance.client import BY_NAME, CLIENTS, Client, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.server import Server, ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named

BULK_RECORDS = 300
LARGE_BYTES = 700_000
CLOCK_SLACK_MS = 5_000
REFUSAL_TIMEOUT_S = 3.0
# Readers at the protocol of 2016 cannot be given zstd: a broker must refuse, not send what they cannot read.
ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class Written:
    """One topic as its writer left it."""

    writer: Client
    codec: str
    topic: str
    partition: int
    records: list[Record]
    not_before_ms: int
    not_after_ms: int


def record_set(writer: Client, seed: int, now_ms: int) -> list[Record]:
    """Records with every edge the writer can express; timestamps stay inside the default retention."""
    chance = random.Random(seed)
    text = "".join(chance.choices(string.ascii_letters + string.digits, k=LARGE_BYTES)).encode()
    headers: tuple[tuple[str, bytes | None], ...] = (
        ("trace", b"a1"),
        ("empty", b""),
        ("näme", "wért".encode()),
    )
    if writer.header_lists:
        headers += (("trace", b"a2"),)
    if writer.null_headers:
        headers += (("nothing", None),)
    records = [
        Record(b"key", b"value"),
        Record(None, b"no key"),
        Record(b"tombstone", None),
        Record(b"empty value", b""),
        Record(b"", b"empty key"),
        Record("schlüssel".encode(), "значение 価値".encode()),
        Record(b"with headers", b"value", headers),
        Record(b"tombstone with headers", None, headers),
        Record(b"large", text),
        Record(None, b"after large"),
    ]
    if writer.binary:
        every_byte = bytes(range(256))
        # Keys go through argument lists for some clients, which end at a zero byte.
        records.append(Record(every_byte[128:], every_byte * 40))
        records.append(Record(every_byte[1:], chance.randbytes(100_000)))
    records += [Record(None, b"bulk %d %s" % (i, b"x" * (i % 50))) for i in range(BULK_RECORDS)]
    if not writer.headers:
        records = [replace(record, headers=()) for record in records]
    if writer.stamps:
        hour_ago = now_ms - 3_600_000
        records = [replace(record, timestamp=hour_ago + 1_017 * at) for at, record in enumerate(records)]
    return records


def write_all(server: Server, writer: Client, seed: int, failures: list[str]) -> list[Written]:
    """What the writer wrote, a topic a codec; failures are noted and the topic left out."""
    done = []
    with Session(writer, server.bootstrap) as session:
        for codec in writer.codecs:
            try:
                done.append(write(session, writer, codec, seed))
            except ClientFailed as why:
                failures.append(f"{writer.name} writes {codec}: {why}")
                if session.process.poll() is not None:
                    return done
    return done


def write(session: Session, writer: Client, codec: str, seed: int) -> Written:
    topic = f"matrix-{seed}-{writer.name}-{codec}"
    before_ms = int(time.time() * 1000)
    records = record_set(writer, seed, before_ms)
    session.create(topic, writer.partitions)
    partition = writer.partitions - 1
    # Two sends, so that there are at least two batches and the second holds many records.
    edges = len(records) - BULK_RECORDS
    offsets = session.produce(topic, partition, codec, records[:edges])
    offsets += session.produce(topic, partition, codec, records[edges:])
    wrong = [(at, offset) for at, offset in enumerate(offsets) if offset not in (at, -1)]
    if wrong:
        raise ClientFailed(f"record {wrong[0][0]} was acknowledged at offset {wrong[0][1]}")
    after_ms = int(time.time() * 1000)
    return Written(writer, codec, topic, partition, records, before_ms, after_ms)


def read(session: Session, written: Written) -> str | None:
    """Why this reader did not get what was written, or None."""
    reader = session.client
    if written.codec not in reader.codecs:
        return _expect_refusal(session, written)
    starts = [0]
    if written.codec == "gzip":
        starts.append(len(written.records) - BULK_RECORDS // 2)
    for start in starts:
        wanted = written.records[start:]
        got = session.consume(written.topic, written.partition, start, len(wanted))
        if len(got) != len(wanted):
            return f"from offset {start}: {len(got)} of {len(wanted)} records came"
        for at, (expected, actual) in enumerate(zip(wanted, got, strict=True), start):
            why = _difference(reader, written, expected, actual, at)
            if why:
                return f"record {at}: {why}"
    return None


def _expect_refusal(session: Session, written: Written) -> str | None:
    """Batches that the writer left uncompressed may come; the first compressed one must end it."""
    try:
        got = session.consume(
            written.topic, written.partition, 0, len(written.records), timeout_s=REFUSAL_TIMEOUT_S
        )
    except ClientFailed:
        return None
    if len(got) == len(written.records):
        return "all records came in a codec that this protocol version does not have"
    for at, (expected, actual) in enumerate(zip(written.records, got, strict=False)):
        why = _difference(session.client, written, expected, actual, at)
        if why:
            return f"record {at}: {why}"
    return None


def _difference(reader: Client, written: Written, expected: Record, actual: Record, at: int) -> str | None:
    if actual.offset != at:
        return f"offset {actual.offset}"
    if actual.partition != written.partition:
        return f"partition {actual.partition}, written to {written.partition}"
    for name in ("key", "value"):
        sent, came = getattr(expected, name), getattr(actual, name)
        if sent != came:
            return f"{name} {_brief(came)}, written {_brief(sent)}"
    if reader.headers and _headers(reader, expected) != _headers(reader, actual):
        return f"headers {actual.headers}, written {expected.headers}"
    if actual.timestamp is None:
        return None
    if expected.timestamp is not None:
        return (
            None
            if actual.timestamp == expected.timestamp
            else f"timestamp {actual.timestamp}, written {expected.timestamp}"
        )
    if (
        not written.not_before_ms - CLOCK_SLACK_MS
        <= actual.timestamp
        <= written.not_after_ms + CLOCK_SLACK_MS
    ):
        return f"timestamp {actual.timestamp} is not of the time of writing"
    return None


def _headers(reader: Client, record: Record) -> list[tuple[str, bytes | None]]:
    if reader.header_lists:
        return list(record.headers)
    return sorted(record.headers, key=repr)


def _brief(value: bytes | None) -> str:
    return repr(value) if value is None or len(value) <= 40 else f"{value[:40]!r}… ({len(value)} bytes)"


def read_all(
    server: Server, reader: Client, topics: list[Written], failures: list[str]
) -> dict[str, list[bool]]:
    """For each writer, whether each of its topics came back the same."""
    results: dict[str, list[bool]] = defaultdict(list)
    session = Session(reader, server.bootstrap)
    try:
        for written in topics:
            try:
                why = read(session, written)
            except ClientFailed as error:
                why = str(error)
                if session.process.poll() is not None:
                    session.close()
                    session = Session(reader, server.bootstrap)
            if why:
                failures.append(f"{written.writer.name} -> {reader.name}, {written.codec}: {why}")
            results[written.writer.name].append(why is None)
    finally:
        session.close()
    return results


def print_table(
    writers: list[Client], readers: list[Client], results: dict[str, dict[str, list[bool]]]
) -> None:
    width = max(len(client.name) for client in (*writers, *readers)) + 2
    print("\nTopics (one a codec) that came back the same, writers down, readers across:")
    print(" " * width + "".join(f"{reader.name:>{len(reader.name) + 2}}" for reader in readers))
    for writer in writers:
        row = ""
        for reader in readers:
            cells = results[reader.name].get(writer.name, [])
            text = f"{sum(cells)}/{len(writer.codecs)}"
            row += f"{text:>{len(reader.name) + 2}}"
        print(f"{writer.name:<{width}}{row}")


def run(server: Server, writers: list[Client], readers: list[Client], seed: int) -> list[str]:
    failures: list[str] = []
    topics: list[Written] = []
    for writer in writers:
        began = time.monotonic()
        written = write_all(server, writer, seed, failures)
        topics += written
        codecs = ", ".join(each.codec for each in written)
        print(f"{writer.name} wrote {codecs or 'nothing'} ({time.monotonic() - began:.1f} s)", flush=True)
    results: dict[str, dict[str, list[bool]]] = {}
    for reader in readers:
        began = time.monotonic()
        results[reader.name] = read_all(server, reader, topics, failures)
        good = sum(sum(cells) for cells in results[reader.name].values())
        took = time.monotonic() - began
        print(f"{reader.name} read {good} of {len(topics)} topics as written ({took:.1f} s)", flush=True)
    print_table(writers, readers, results)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.matrix", description=__doc__.splitlines()[0])
    add_against(parser)
    names = ", ".join(BY_NAME)
    parser.add_argument("--writers", nargs="+", choices=BY_NAME, metavar="CLIENT", help=f"some of: {names}")
    parser.add_argument("--readers", nargs="+", choices=BY_NAME, metavar="CLIENT", help="likewise")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    writers = [client for client in CLIENTS if options.writers is None or client.name in options.writers]
    readers = [client for client in CLIENTS if options.readers is None or client.name in options.readers]
    try:
        for client in dict.fromkeys((*writers, *readers)):
            client.program()
        with interrupted_cleanly(), server_named(options.against) as server:
            failures = run(server, writers, readers, options.seed)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except ServerFailed as why:
        print(f"matrix: {why}", file=sys.stderr)
        return 2
    for failure in failures:
        print(f"FAILED {failure}")
    pairs = len(writers) * len(readers)
    print(f"{pairs} pairs of writer and reader, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
