"""The load generator and the null broker agree on the protocol with each other and with a known client."""

import shutil
from collections.abc import Iterator

import crc32c
import pytest
from benchmarks.brokers import NullBroker
from benchmarks.scenarios import Target
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import clients, control, scenarios

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="the programs are compiled from C"
)


@pytest.fixture(scope="module")
def null() -> Iterator[Target]:
    with NullBroker() as server:
        yield Target("null", server)


def test_the_batch_of_the_first_record_is_whole() -> None:
    batch = control.one_record_batch(b"x" * 100)
    assert int.from_bytes(batch[8:12], "big") == len(batch) - 12
    assert int.from_bytes(batch[17:21], "big") == crc32c.crc32c(batch[21:])


def test_offsets_are_counted_although_nothing_is_kept(null: Target) -> None:
    connection = control.Control(null.server.host, null.server.port)
    topic = null.topic()
    assert [connection.produce_one(topic) for _ in range(3)] == [0, 1, 2]
    connection.close()


@pytest.mark.parametrize("workload", ["1K-pipe64", "1K-8x5", "128K-d5"])
def test_frames_are_acknowledged_in_every_shape(null: Target, workload: str) -> None:
    where = null.server.bootstrap
    got = clients.raw().alone(where, null.unused_topic(), workload, 0.1, 1024, verify=False)
    assert got.records > 0


def test_a_known_client_reads_as_many_records_as_it_wrote(null: Target) -> None:
    topic = null.topic()
    # One batch, sent by the flush: of several only the largest is kept.
    producer = Producer({"bootstrap.servers": null.server.bootstrap, "linger.ms": 60_000})
    for _ in range(100):
        producer.produce(topic, b"some value")
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": null.server.bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = consumer.consume(100, timeout=60)
    consumer.close()
    assert [record.offset() for record in read] == list(range(100))


def test_a_difference_between_sent_and_read_is_a_failure() -> None:
    sent = clients.Measured(3, 1.0, 1.0, "00ff")
    with pytest.raises(clients.ClientFailed, match="digest 00ff were acknowledged"):
        clients.same("any", sent, clients.Measured(3, 1.0, 1.0, "ff00"))


def test_every_scenario_of_raw_frames_runs(null: Target) -> None:
    for scenario in scenarios.scenarios("os", scenarios.Size(small_seconds=0.1, latency_seconds=0.3)):
        if "/raw frames" in scenario.key:
            assert all(figure > 0 for figure in scenario.run(null).values()), scenario.key
