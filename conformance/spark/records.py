"""The topics for `conformance.spark.connector`, with every kind of record that a reader can get wrong.

One client writes the same records to every broker, so the rows must be the same, offset by offset.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from penstock.admin.offsets import LATEST, list_offset
from penstock.client import Client
from penstock.wire.api.end_txn import EndTxnRequest

TIME = 1_700_000_000_000
STARTED = time.time_ns() // 1_000_000
"""The time of records that a broker judges by their age."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BROKER_SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.cleaner.backoff.ms": "500",
    "log.retention.ms": "-1",  # the records are of long ago
}
LARGE_BYTES = 6_000_000
CLEAN_TIMEOUT_S = 90
DELETED_UP_TO = 40
"""Records of `shortened` below this offset are deleted."""

Headers = list[tuple[str, str | bytes | None]]


class Sample(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


NASTY = (
    Sample(b"key", b"value", []),
    Sample(None, b"no key", []),
    Sample(b"no value", None, []),
    Sample(None, None, []),
    Sample(b"", b"", []),
    Sample(b"h", b"headers", [("a", b"1"), ("a", b"2"), ("b", None), ("", b""), ("größe", b"\xff\x00")]),
    Sample(b"only", None, [("gone", None), ("gone", None)]),
    Sample(b"\x00\xff", bytes(range(256)), [("x" * 300, b"y" * 3000)]),
    Sample(b"large", b"z" * 900_000, []),
)
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "1000",
    "segment.bytes": "1048576",
    "delete.retention.ms": "3600000",
}


def fill(bootstrap: str) -> bool:
    """Create and fill all topics; whether the broker serves transactions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic("create", len(CODECS), 1, config={"message.timestamp.type": "CreateTime"}),
        NewTopic("append", len(CODECS), 1, config={"message.timestamp.type": "LogAppendTime"}),
        NewTopic("compacted", 2, 1, config=COMPACTED),
        NewTopic("shortened", 2, 1, config={}),
        NewTopic("large", 2, 1, config={"max.message.bytes": "16000000"}),
        NewTopic("empty", 2, 1, config={}),
        NewTopic("transactional", 2, 1, config={}),
        *(NewTopic(name, 3 if name == "events-a" else 1, 1, config={}) for name in ("events-a", "events-b")),
        *(NewTopic(f"written-{kind}", 2, 1, config={}) for kind in ("batch", "stream", "topics")),
    ]
    for done in admin.create_topics(topics).values():
        done.result(30)
    for number, codec in enumerate(CODECS):
        producer = _producer(bootstrap, codec)
        for topic in ("create", "append"):
            for at, one in enumerate(NASTY):
                producer.produce(
                    topic, one.value, one.key, number, headers=one.headers or None, timestamp=TIME + at
                )
        _flush(producer)
    numbers(bootstrap, 0, 300)
    _shorten(admin, bootstrap)
    _large(bootstrap)
    _compact(bootstrap)
    return _transactions(bootstrap)


def numbers(bootstrap: str, first: int, last: int) -> None:
    """Records with a number as key and value, ten milliseconds apart."""
    producer = _producer(bootstrap, "lz4")
    for at in range(first, last):
        value = b"%d" % at
        producer.produce("events-a", value, value, at % 3, timestamp=TIME + at * 10)
        if at % 10 == 0:
            producer.produce("events-b", value, None, 0, timestamp=TIME + at * 10)
    _flush(producer)


def grow(bootstrap: str) -> None:
    """A new partition of `events-b` with a few records."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_partitions([NewPartitions("events-b", 2)]).values():
        done.result(30)
    producer = _producer(bootstrap, "none")
    deadline = time.monotonic() + 30
    while len(producer.list_topics("events-b", 10).topics["events-b"].partitions) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("events-b did not get its second partition")
    for at in range(20):
        producer.produce("events-b", b"new %d" % at, None, 1, timestamp=TIME + at)
    _flush(producer)


def delete_beginning(bootstrap: str, topic: str, partition: int, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        done.result(30)


def _producer(bootstrap: str, codec: str, **more: str | int) -> Producer:
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        "compression.type": codec,
        "linger.ms": 20,
        "message.max.bytes": 16_000_000,
    }
    settings.update({name.replace("_", "."): value for name, value in more.items()})
    return Producer(settings)


def _flush(producer: Producer) -> None:
    left = producer.flush(60)
    if left:
        raise TimeoutError(f"{left} records were not taken within 60 s")


def _shorten(admin: AdminClient, bootstrap: str) -> None:
    producer = _producer(bootstrap, "zstd")
    for at in range(100):
        producer.produce("shortened", b"%d" % at, None, at % 2, timestamp=TIME + at)
    _flush(producer)
    for done in admin.delete_records([TopicPartition("shortened", 0, DELETED_UP_TO)]).values():
        done.result(30)


def _large(bootstrap: str) -> None:
    for number, codec in enumerate(("none", "zstd")):
        producer = _producer(bootstrap, codec)
        for at in range(3):
            producer.produce("large", bytes([at]) * LARGE_BYTES, b"%d" % at, number, timestamp=TIME + at)
            producer.produce("large", b"small", b"%d" % at, number, timestamp=TIME + at)
        _flush(producer)


def _compact(bootstrap: str) -> None:
    """Updates to few keys, some of them deleted; done when each key has its last update only."""
    producer = _producer(bootstrap, "snappy")
    wanted: dict[int, dict[bytes, int]] = {0: {}, 1: {}}
    offsets = [0, 0]

    def put(partition: int, key: bytes, value: bytes | None) -> None:
        producer.produce("compacted", value, key, partition, timestamp=STARTED + offsets[partition])
        wanted[partition][key] = offsets[partition]
        offsets[partition] += 1

    for at in range(400):
        # Few keys that change all the time, and some that never do: gaps of all sizes are left.
        key = b"once %d" % at if at % 40 in (3, 6) else b"key %d" % (at % 26 // 2)
        put(at % 2, key, None if at % 13 == 5 else b"%d" % at * 20)
        if at % 50 == 49:
            _flush(producer)
    _flush(producer)
    # Neither broker cleans what is newest. So one more record comes once the others are old enough.
    time.sleep(float(COMPACTED["segment.ms"]) / 1000 + 0.2)
    for partition, keys in wanted.items():
        producer.produce("compacted", b"one", b"last", partition, timestamp=STARTED + 10_000)
        keys[b"last"] = offsets[partition]
    _flush(producer)
    deadline = time.monotonic() + CLEAN_TIMEOUT_S
    for partition, keys in wanted.items():
        while (found := _offsets(bootstrap, "compacted", partition)) != sorted(keys.values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"partition {partition} is not clean: {len(found)} of {len(keys)} records")
            time.sleep(0.2)


def _offsets(bootstrap: str, topic: str, partition: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[int] = []
    while (message := consumer.poll(10)) is not None and not message.error():
        found.append(message.offset() or 0)
    consumer.close()
    return found


def _transactions(bootstrap: str) -> bool:
    """Committed, aborted, committed, and one that is left open; plain records in between."""
    with Client(bootstrap) as client:
        if not client.any().knows(EndTxnRequest.api_key):
            return False
    plain = _producer(bootstrap, "none")
    producer = _producer(bootstrap, "lz4", transactional_id="closed")
    left_open = _producer(bootstrap, "none", transactional_id="open", transaction_timeout_ms=600_000)
    for one in (producer, left_open):
        one.init_transactions(30)
    for number, commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for at in range(10):
            value = b"%d %d %r" % (number, at, commit)
            producer.produce("transactional", value, None, at % 2, timestamp=TIME + at)
        _flush(producer)  # An abort drops what was not sent.
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
        # A transaction is ended before its markers are written. Offsets are to be the same on both brokers.
        _await_ends(bootstrap, "transactional", (7 * number + 6, 6 * number + 6))
        plain.produce("transactional", b"plain", None, 0, timestamp=TIME)
        _flush(plain)
    left_open.begin_transaction()
    left_open.produce("transactional", b"open", None, 1, timestamp=TIME)
    _flush(left_open)
    plain.produce("transactional", b"beyond", None, 1, timestamp=TIME)
    _flush(plain)
    OPEN.append(left_open)
    return True


def _await_ends(bootstrap: str, topic: str, ends: Sequence[int]) -> None:
    deadline = time.monotonic() + 30
    with Client(bootstrap) as client:
        for partition, end in enumerate(ends):
            while list_offset(client, topic, partition, LATEST) < end:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the markers of a transaction in {topic!r} were not written")
                time.sleep(0.02)


OPEN: list[Producer] = []
"""Producers whose transaction is to stay open until the process ends."""


def offsets_json(topic: str, offsets: Sequence[int]) -> str:
    """What startingOffsets takes."""
    entries = ", ".join(f'"{number}": {offset}' for number, offset in enumerate(offsets))
    return f'{{"{topic}": {{{entries}}}}}'
