"""`Log(STORE).topic(NAME).scan()`: the records that clients wrote, from the store of real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import Log
from penstock.testing import Broker
from penstock.testing.waiting import until
from tests.spark.test_batch import NASTY, create, produce
from tests.spark.workshop import TIME

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NEVER = 3_600_000
"""Records stay in write-ahead logs for so long, in milliseconds."""
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture
def log(broker: Broker) -> Iterator[Log]:
    with Log(broker.store) as opened:
        yield opened


def seen(reader: Any) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in reader.read_all().to_pylist()]


@pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
def test_rows_are_what_was_written(broker: Broker, log: Log, time_type: str) -> None:
    topic = f"rows-{time_type}"
    create(broker, topic, 3, config={"message.timestamp.type": time_type})
    for codec in CODECS:
        for partition in (2, 0, 1):
            produce(broker, topic, codec, partition=partition)
    rows = log.topic(topic).scan().read_all().to_pylist()
    written = [one for _codec in CODECS for one in enumerate(NASTY)]
    expected = [(partition, at, *one) for partition in range(3) for at, one in enumerate(written)]
    assert len(rows) == len(expected)
    for row, (partition, offset, nth, (key, value, headers)) in zip(rows, expected, strict=True):
        assert (row["topic"], row["partition"], row["offset"]) == (topic, partition, offset)
        assert (row["key"], row["value"]) == (key, value)
        found = row["headers"] and [(one["key"], one["value"]) for one in row["headers"]]
        assert found == (headers or None)
        assert row["timestampType"] == int(time_type == "LogAppendTime")
        if time_type == "CreateTime":
            assert row["timestamp"] == datetime.fromtimestamp(TIME // 1000, UTC) + timedelta(milliseconds=nth)


def test_times_long_ago(broker: Broker, log: Log) -> None:
    create(broker, "old")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for time_ms in (1, 86_400_000):
        producer.produce("old", b"x", partition=0, timestamp=time_ms)
    assert producer.flush(20) == 0
    first, second = log.topic("old").scan(columns=["timestamp"]).read_all()["timestamp"].to_pylist()
    assert first == datetime(1970, 1, 1, microsecond=1000, tzinfo=UTC)
    assert second == datetime(1970, 1, 2, tzinfo=UTC)
    topic = log.topic("old")
    assert seen(topic.scan(start=datetime(1960, 1, 1, tzinfo=UTC))) == [(0, 0), (0, 1)]
    assert seen(topic.scan(end=datetime(1960, 1, 1, tzinfo=UTC))) == []


def test_the_tail_while_brokers_run_after_kill_9_and_after_a_stop() -> None:
    """Nothing is settled until the clean stop, so all of it is read from write-ahead logs."""
    with Broker(process=True, settings={"wal.settle.interval.ms": NEVER}) as mortal, Log(mortal.store) as log:
        create(mortal, "events", 2)
        expected = []

        def write(count: int) -> None:
            for partition in range(2):
                rows: list[Any] = [(None, b"%d-%d" % (partition, at), []) for at in range(count)]
                produce(mortal, "events", "lz4", rows, partition)
                expected.extend([(partition, value) for _key, value, _headers in rows])

        def found() -> list[tuple[int, bytes]]:
            rows = log.topic("events").scan(columns=["partition", "value"]).read_all().to_pylist()
            return [(row["partition"], row["value"]) for row in rows]

        def in_order() -> list[tuple[int, bytes]]:
            return sorted(expected, key=lambda row: row[0])

        write(50)
        assert found() == in_order(), "brokers up"
        mortal.kill()
        assert not any((Path(mortal.store) / "segments").rglob("*")), "it is all in a write-ahead log"
        assert found() == in_order(), "after kill -9"
        mortal.start()
        write(30)
        assert found() == in_order(), "the logs of a dead broker and of one that lives"
        mortal.stop()
        assert found() == in_order(), "after a clean stop"


def test_offsets_that_compaction_took_away_are_no_rows() -> None:
    eager: dict[str, str | int | bool] = {
        "wal.settle.interval.ms": 50,
        "log.cleaner.backoff.ms": 50,
        "log.cleaner.min.cleanable.ratio": "0.001",
        "log.roll.ms": 1,
    }
    with Broker(settings=eager) as broker, Log(broker.store) as log:
        create(broker, "latest", config={"cleanup.policy": "compact"})
        for number in range(5):
            produce(broker, "latest", "none", [(b"same", b"%d" % number, []), (b"%d" % number, b"once", [])])

        def rows() -> list[tuple[int, bytes, bytes]]:
            found = log.topic("latest").scan(columns=["offset", "key", "value"]).read_all().to_pylist()
            return [(row["offset"], row["key"], row["value"]) for row in found]

        kept = [(2 * at + 1, b"%d" % at, b"once") for at in range(5)]
        expected = [*kept[:-1], (8, b"same", b"4"), kept[-1]]
        until(lambda: rows() == expected, 120, "compaction")
        assert log.topic("latest").offsets() == {0: (0, 10)}
        within = log.topic("latest").scan({0: 2}, {0: 8}, columns=["offset"]).read_all()
        assert within["offset"].to_pylist() == [3, 5, 7]


def test_transactions(broker: Broker, log: Log) -> None:
    create(broker, "bank", 1)
    topic = log.topic("bank")

    def begun(name: str, *values: bytes) -> Producer:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce("bank", value, partition=0)
        assert producer.flush(30) == 0
        return producer

    def values(**options: Any) -> list[bytes]:
        found: list[bytes] = topic.scan(columns=["value"], **options).read_all()["value"].to_pylist()
        return found

    # A producer is told of the end of a transaction before its markers are written.
    begun("one", b"committed").commit_transaction(30)
    until(lambda: topic.offsets() == {0: (0, 2)}, 30, "a marker")
    begun("two", b"aborted 1", b"aborted 2").abort_transaction(30)
    until(lambda: topic.offsets() == {0: (0, 5)}, 30, "a marker")
    still_open = begun("three", b"open")
    produce(broker, "bank", "none", [(None, b"behind", [])])
    whole = [b"committed", b"aborted 1", b"aborted 2", b"open", b"behind"]
    assert values() == [b"committed"]
    assert values(isolation="read_uncommitted") == whole
    # A record and a marker, two records and a marker, then the open transaction.
    assert topic.offsets() == {0: (0, 5)}
    assert topic.offsets(isolation="read_uncommitted") == {0: (0, 7)}
    with pytest.raises(ValueError, match="a transaction that is open there begins at 5"):
        topic.scan(end={0: 6})
    assert values(end={0: 6}, isolation="read_uncommitted") == whole[:-1]
    assert values(start={0: 6}) == [], "one may start beyond it"
    still_open.commit_transaction(30)
    until(lambda: topic.offsets() == {0: (0, 8)}, 30, "a marker")
    assert values() == [b"committed", b"open", b"behind"]


def test_where_a_scan_starts_and_ends(broker: Broker, log: Log) -> None:
    create(broker, "bounds", 2)
    for partition in range(2):
        produce(broker, "bounds", "none", [(None, b"%d" % at, []) for at in range(4)], partition)
    topic = log.topic("bounds")
    everything = [(partition, offset) for partition in range(2) for offset in range(4)]
    assert seen(topic.scan()) == everything
    assert seen(topic.scan("earliest", "latest")) == everything
    assert seen(topic.scan("latest")) == []
    assert seen(topic.scan(end="earliest")) == []
    assert seen(topic.scan({0: 1, 1: 3}, {0: 3, 1: 4})) == [(0, 1), (0, 2), (1, 3)]
    assert seen(topic.scan({0: "latest", 1: 2}, {0: "latest", 1: "latest"})) == [(1, 2), (1, 3)]
    assert seen(topic.scan({1: 2}, {0: 1})) == [(0, 0), (1, 2), (1, 3)], "others are read whole"
    assert seen(topic.scan({}, {})) == everything
    assert seen(topic.scan({0: 4, 1: 4})) == [], "the offset that comes next is one to start at"
    assert seen(topic.scan({0: 3, 1: 3}, {0: 1, 1: 1})) == []
    assert topic.offsets() == {0: (0, 4), 1: (0, 4)}


def test_a_scan_ends_where_the_topic_ended_when_it_was_asked_for(broker: Broker, log: Log) -> None:
    create(broker, "moment")
    produce(broker, "moment", "none", [(None, b"before", [])])
    reader = log.topic("moment").scan()
    produce(broker, "moment", "none", [(None, b"after", [])])
    assert seen(reader) == [(0, 0)]
    assert seen(log.topic("moment").scan()) == [(0, 0), (0, 1)]


class Stamp(datetime):
    """As pandas has it: without a time zone it has no way to one."""

    def astimezone(self, tz: tzinfo | None = None) -> Stamp:
        if self.tzinfo is None:
            raise TypeError("Cannot convert tz-naive Timestamp, use tz_localize to localize")
        return super().astimezone(tz)


def test_times_to_start_and_end_at(broker: Broker, log: Log) -> None:
    """Partition 0 has records at TIME to TIME + 3 ms, and partition 1 only the first of these."""
    create(broker, "times", 2)
    produce(broker, "times", "zstd", [(None, b"%d" % at, []) for at in range(4)], 0)
    produce(broker, "times", "zstd", [(None, b"0", [])], 1)
    topic = log.topic("times")
    first = datetime.fromtimestamp(TIME / 1000, UTC)
    ms = timedelta(milliseconds=1)
    assert seen(topic.scan(first)) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert seen(topic.scan(first + 2 * ms)) == [(0, 2), (0, 3)], "partition 1 has no such record"
    assert seen(topic.scan(first + ms / 2)) == [(0, 1), (0, 2), (0, 3)], "between two milliseconds"
    assert seen(topic.scan(end=first + 2 * ms)) == [(0, 0), (0, 1), (1, 0)]
    assert seen(topic.scan(first + ms, first + 3 * ms)) == [(0, 1), (0, 2)]
    assert seen(topic.scan(first + HOUR)) == []
    assert len(seen(topic.scan(end=first + HOUR))) == 5
    elsewhere = (first + 2 * ms).astimezone(tz=None)
    assert seen(topic.scan(elsewhere)) == [(0, 2), (0, 3)], "a time zone of its own"
    local = elsewhere.replace(tzinfo=None)
    assert seen(topic.scan(local)) == [(0, 2), (0, 3)], "local time"
    stamp = Stamp.combine(local.date(), local.time())
    assert seen(topic.scan(stamp)) == [(0, 2), (0, 3)], "local time, by pandas"


def test_some_columns_in_their_order(broker: Broker, log: Log) -> None:
    create(broker, "some")
    produce(broker, "some", "gzip", [(b"k", b"v", [])])
    reader = log.topic("some").scan(columns=("offset", "key"))
    assert reader.schema.names == ["offset", "key"]
    assert reader.read_all().to_pylist() == [{"offset": 0, "key": b"k"}]


def test_an_empty_topic_has_columns_and_no_rows(broker: Broker, log: Log) -> None:
    create(broker, "empty", 2)
    topic = log.topic("empty")
    reader = topic.scan()
    assert [(one.name, str(one.type)) for one in reader.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int32"),
        ("offset", "int64"),
        ("timestamp", "timestamp[us, tz=UTC]"),
        ("timestampType", "int32"),
        ("headers", "list<element: struct<key: string, value: binary>>"),
    ]
    assert reader.read_all().num_rows == 0
    assert seen(topic.scan(datetime.now(UTC) - HOUR, datetime.now(UTC))) == []
    assert topic.offsets() == {0: (0, 0), 1: (0, 0)}
    assert "empty" in log.topics()
    assert all(not name.startswith("__") for name in log.topics())
