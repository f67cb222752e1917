"""Everybody who reads a compacted log: clients of a whole broker, groups that resume, Spark on the store."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from penstock.log.policy import LogPolicy
from penstock.testing import Broker
from penstock.wire.batch import Record, build_batch
from tests.spark.workshop import TIME, Workshop

DEADLINE_SECONDS = 180
EAGER: dict[str, str | int | bool] = {
    "wal.settle.interval.ms": 50,
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.min.cleanable.ratio": "0.001",
    "log.roll.ms": 1,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
"""Everything is compacted as soon as it is written."""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=EAGER) as made:
        yield made


def create(broker: Broker, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("t", 1, 1, config=settings)])["t"].result(60)


def write(broker: Broker, *pairs: tuple[str | None, str | None]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for key, value in pairs:
        producer.produce("t", value, key, 0, on_delivery=delivered)
        producer.flush(60)
    if failures:
        raise KafkaException(failures[0])


def read(broker: Broker, start: int = 0, topic: str = "t") -> list[tuple[int, bytes | None, bytes | None]]:
    """Every record from an offset up to the end of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        found: list[tuple[int, bytes | None, bytes | None]] = []
        while True:
            message = consumer.poll(60)
            assert message is not None, "the reader did not get to the end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            offset = message.offset()
            assert offset is not None
            found.append((offset, message.key(), message.value()))
    finally:
        consumer.close()


def until_offsets_are(broker: Broker, *expected: int, topic: str = "t") -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        offsets = [offset for offset, _key, _value in read(broker, topic=topic)]
        if offsets == list(expected):
            return
        assert time.monotonic() < deadline, offsets


def test_clients_read_a_log_with_gaps(broker: Broker) -> None:
    create(broker, **{"cleanup.policy": "compact"})
    write(broker, *((f"k{number % 3}", f"{number}") for number in range(30)), ("once", "1"))
    until_offsets_are(broker, 27, 28, 29, 30)
    assert [(key, value) for _offset, key, value in read(broker)][:2] == [(b"k0", b"27"), (b"k1", b"28")]
    for start in (1, 15, 27, 29, 30):
        assert read(broker, start)[0][0] == max(start, 27)
    assert read(broker, 31) == []
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=60) == (0, 31)
    (found,) = consumer.offsets_for_times([TopicPartition("t", 0, 1)], timeout=60)
    assert found.offset == 27
    consumer.close()
    broker.kill()
    broker.start()
    assert [offset for offset, _key, _value in read(broker)] == [27, 28, 29, 30]


def test_records_without_a_key_are_refused(broker: Broker) -> None:
    create(broker, **{"cleanup.policy": "compact,delete"})
    with pytest.raises(KafkaException) as refused:
        write(broker, (None, "x"))
    assert refused.value.args[0].code() == KafkaError.INVALID_RECORD
    write(broker, ("k", "x"))
    assert read(broker) == [(0, b"k", b"x")]


def test_a_topic_becomes_compacted_when_its_policy_changes(broker: Broker) -> None:
    create(broker)
    write(broker, ("a", "1"), (None, "keyless"), ("a", "2"), ("a", "3"))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    until_offsets_are(broker, 3)


def test_groups_resume_from_a_compacted_offsets_topic(broker: Broker) -> None:
    create(broker, **{"cleanup.policy": "delete"})
    write(broker, *((None, f"{number}") for number in range(20)))

    def resume(group: str) -> tuple[int, int]:
        """The first record that comes, and what was committed before; commits the one after it."""
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["t"])
        message = consumer.poll(60)
        assert message is not None and message.error() is None
        (before,) = consumer.committed([TopicPartition("t", 0)], timeout=60)
        consumer.commit(message=message, asynchronous=False)
        consumer.close()
        offset = message.offset()
        assert offset is not None
        return offset, before.offset

    for number in range(6):
        for group in ("g1", "g2"):
            offset, committed = resume(group)
            assert offset == number and committed in (number, -1001)
        if number % 2:
            # Joins and commits of both groups leave little behind: their last state.
            deadline = time.monotonic() + DEADLINE_SECONDS
            while True:
                left = read(broker, topic="__consumer_offsets")
                keys = [key for _offset, key, _value in left]
                if len(keys) == len(set(keys)) and left[0][0] > 0:
                    break
                assert time.monotonic() < deadline, keys
            broker.kill()
            broker.start()


def test_spark_reads_the_store_of_a_compacted_log(tmp_path: Path) -> None:
    from penstock.arrow.asked import Selection
    from penstock.arrow.planning import choose
    from penstock.arrow.reading import ReadSettings, open_blocking, read_stretches
    from penstock.cluster.reading import view_of
    from penstock.log.isolation import Isolation
    from penstock.storage.reader.stretches import Stretch, stretch_of

    with Workshop(str(tmp_path / "store")) as workshop:
        workshop.create("t")

        def updates(*pairs: tuple[bytes, bytes]) -> None:
            records = [Record(at, TIME + at, key, value) for at, (key, value) in enumerate(pairs)]
            workshop.append("t", build_batch(records))

        def plan() -> Stretch:
            blocking = open_blocking(workshop.store)
            chosen = view_of(blocking.store, lambda image: choose(Selection(names=("t",)), image))
            view = blocking.run(chosen.refresh())[key]
            return stretch_of(view, 0, view.end, Isolation.READ_COMMITTED)

        def rows(stretch: Stretch) -> list[tuple[int, bytes]]:
            settings = ReadSettings(workshop.store, ("offset", "value"), Isolation.READ_COMMITTED, True, True)
            found = read_stretches([stretch], settings)
            return [(row["offset"], row["value"]) for batch in found for row in batch.to_pylist()]

        key = (workshop.partition("t").topic_id, 0)
        for number in range(5):
            updates((b"a", b"%d" % number), (b"b", b"%d" % number), (b"c%d" % number, b"once"))
            workshop.settle()
        planned_before = plan()
        assert len(rows(planned_before)) == 15
        policy = LogPolicy(compact=True, segment_ms=0, min_cleanable_ratio=0.0, file_delete_delay_ms=0)
        workshop.partition("t").policy = policy
        assert workshop._run(workshop.ledger.clean()) == 1
        workshop.collect()
        expected = [
            (2, b"once"),
            (5, b"once"),
            (8, b"once"),
            (11, b"once"),
            (12, b"4"),
            (13, b"4"),
            (14, b"once"),
        ]
        assert rows(plan()) == expected
        assert rows(planned_before) == expected, "it looks again where the records lie now"
        updates((b"a", b"new"))
        assert rows(plan()) == [*expected, (15, b"new")]
