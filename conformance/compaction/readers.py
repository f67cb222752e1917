"""Every client reads a compacted partition: gaps, batches without records, tombstones with a delete horizon.

An idempotent producer writes uncompressed and compressed updates. Compaction leaves the same of them as in
Apache Kafka, so a client that reads the one reads the other. Each client reads from the beginning and from
inside of gaps, and must get the same records at the same offsets and with their own times.
"""

import time
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.client import CLIENTS, Client, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.parts import PartMissing
from conformance.server import Server

TOPIC = "compacted"
KEYS = 40
ROUNDS = 25
CODECS = ("none", "gzip", "snappy", "lz4")
SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "500",
    "delete.retention.ms": "3600000",
}
COMPACTED_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Left:
    """What must be left of the partition."""

    records: dict[int, tuple[bytes, bytes | None]]
    end: int
    not_before_ms: int
    not_after_ms: int


def write(bootstrap: str) -> Left:
    """Update every key in every round, with each codec in turn and a tombstone now and then."""
    last: dict[bytes, tuple[int, bytes | None]] = {}
    offset = 0
    began_ms = int(time.time() * 1000)
    producers = {codec: _producer(bootstrap, codec) for codec in CODECS}
    for number in range(ROUNDS):
        producer = producers[CODECS[number % len(CODECS)]]
        for at in range(KEYS):
            # Some keys are not written any more after a while, so that survivors lie all over the log.
            if number > at % ROUNDS and at % 3 == 0:
                continue
            key = b"key-%d" % at
            value = None if at % 10 == 7 and number == ROUNDS - 1 else b"%d/%d " % (number, at) * 20
            producer.produce(TOPIC, value, key, 0)
            last[key] = (offset, value)
            offset += 1
        producer.flush(60)
    records = {at: (key, value) for key, (at, value) in last.items()}
    return Left(records, offset, began_ms, int(time.time() * 1000))


def _producer(bootstrap: str, codec: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
            "batch.num.messages": 10,
        }
    )


def prepare(server: Server) -> Left:
    """A topic that was written and is compacted as far as it can be."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)])[TOPIC].result(30)
    left = write(server.bootstrap)
    confluent = next(client for client in CLIENTS if client.name == "confluent-kafka")
    deadline = time.monotonic() + COMPACTED_WITHIN_S
    with Session(confluent, server.bootstrap) as session:
        while True:
            found = session.consume(TOPIC, 0, 0, len(left.records))
            if [record.offset for record in found] == sorted(left.records):
                return left
            if time.monotonic() > deadline:
                raise ClientFailed(f"the topic was not compacted within {COMPACTED_WITHIN_S:.0f} s")
            time.sleep(0.5)


def read(client: Client, bootstrap: str, left: Left) -> str | None:
    """Why this client did not get what is left, or None."""
    offsets = sorted(left.records)
    gap = next(at for at in range(1, len(offsets)) if offsets[at] - offsets[at - 1] > 10)
    with Session(client, bootstrap) as session:
        for start in (0, offsets[gap - 1] + 1, offsets[gap] - 1, offsets[-1]):
            expected = [offset for offset in offsets if offset >= start]
            found = session.consume(TOPIC, 0, start, len(expected))
            if [record.offset for record in found] != expected:
                got = [record.offset for record in found][:5]
                return f"from {start} on came {len(found)} records, {got}..., not {len(expected)}"
            for record in found:
                why = _difference(record, left)
                if why is not None:
                    return why
    return None


def _difference(record: Record, left: Left) -> str | None:
    assert record.offset is not None
    key, value = left.records[record.offset]
    if (record.key, record.value) != (key, value):
        return (
            f"offset {record.offset} holds {record.key!r} with {record.value!r}, not {key!r} with {value!r}"
        )
    return None


def readers_run(server: Server) -> list[str]:
    """What was wrong, a line for each client that failed."""
    left = prepare(server)
    print(f"{left.end} updates were compacted to {len(left.records)} records", flush=True)
    problems = []
    for client in CLIENTS:
        try:
            why = read(client, server.bootstrap, left)
        except (ClientFailed, PartMissing) as failed:
            why = str(failed)
        print(f"{client.name}: {why or 'reads all of them'}", flush=True)
        if why is not None:
            problems.append(f"{client.name}: {why}")
    return problems
