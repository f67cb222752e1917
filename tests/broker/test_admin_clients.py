"""Administration through real clients, kafka-python and librdkafka, against a broker with sockets."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicCollection, TopicPartition
from kafka import KafkaProducer
from kafka.errors import InvalidPartitionsError, TopicAlreadyExistsError
from kafka.structs import TopicPartition as KafkaPythonPartition

from penstock.testing import Broker

SECONDS = 60

# The types of the clients are their own business.
confluent: Any = import_module("confluent_kafka.admin")
kafka_python: Any = import_module("kafka.admin")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def python_admin(broker: Broker) -> Iterator[Any]:
    client = kafka_python.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def rd_admin(broker: Broker) -> Any:
    return confluent.AdminClient({"bootstrap.servers": broker.bootstrap_servers})


# kafka-python.


def test_kafka_python_topics(python_admin: Any) -> None:
    python_admin.create_topics(
        [kafka_python.NewTopic("py-topics", 3, 1, topic_configs={"retention.ms": "5"})]
    )
    assert "py-topics" in python_admin.list_topics()
    with pytest.raises(TopicAlreadyExistsError):
        python_admin.create_topics([kafka_python.NewTopic("py-topics", 3, 1)])
    python_admin.create_partitions({"py-topics": kafka_python.NewPartitions(5)})
    with pytest.raises(InvalidPartitionsError):
        python_admin.create_partitions({"py-topics": kafka_python.NewPartitions(2)})
    (topic,) = python_admin.describe_topics(["py-topics"])
    assert [partition["leader_id"] for partition in topic["partitions"]] == [1] * 5
    python_admin.delete_topics(["py-topics"])
    assert "py-topics" not in python_admin.list_topics()


def test_kafka_python_settings(python_admin: Any) -> None:
    python_admin.create_topics([kafka_python.NewTopic("py-settings", 1, 1)])
    kind = kafka_python.ConfigResourceType.TOPIC

    def shown() -> Any:
        resource = kafka_python.ConfigResource(kind, "py-settings", {"retention.ms": None})
        return python_admin.describe_configs([resource])["topic"]["py-settings"].get("retention.ms")

    changed = kafka_python.ConfigResource(kind, "py-settings", {"retention.ms": "777"})
    assert python_admin.alter_configs([changed]) == {"topic": {"py-settings": "OK"}}
    assert (shown()["value"], shown()["config_source"]) == ("777", "DYNAMIC_TOPIC_CONFIG")


def test_kafka_python_cluster_and_records(broker: Broker, python_admin: Any) -> None:
    described = python_admin.describe_cluster()
    assert described["controller_id"] in {node["broker_id"] for node in described["brokers"]}
    python_admin.create_topics([kafka_python.NewTopic("py-records", 1, 1)])
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for at in range(5):
        producer.send("py-records", b"%d" % at).get(SECONDS)
    producer.close()
    partition = KafkaPythonPartition("py-records", 0)
    deleted = python_admin.delete_records({partition: 3})
    assert [result["low_watermark"] for result in deleted.values()] == [3]


# librdkafka.


def done(futures: dict[Any, Any]) -> Any:
    """The result of the only future; its error is raised."""
    (future,) = futures.values()
    return future.result(SECONDS)


def code(call: Any) -> str:
    with pytest.raises(KafkaException) as caught:
        done(call)
    return str(caught.value.args[0].name())


def test_librdkafka_topics(rd_admin: Any) -> None:
    done(rd_admin.create_topics([confluent.NewTopic("rd-topics", 3, 1)]))
    assert code(rd_admin.create_topics([confluent.NewTopic("rd-topics", 3, 1)])) == "TOPIC_ALREADY_EXISTS"
    assert code(rd_admin.create_topics([confluent.NewTopic("rd topics", 3, 1)])) == "TOPIC_EXCEPTION"
    assert (
        code(rd_admin.create_topics([confluent.NewTopic("rd-three", 1, 3)])) == "INVALID_REPLICATION_FACTOR"
    )
    only = confluent.NewTopic("rd-only", 1, 1)
    done(rd_admin.create_topics([only], validate_only=True))
    assert "rd-only" not in rd_admin.list_topics(timeout=SECONDS).topics
    done(rd_admin.create_partitions([confluent.NewPartitions("rd-topics", 4)]))
    topic = done(rd_admin.describe_topics(TopicCollection(["rd-topics"])))
    assert [partition.leader.id for partition in topic.partitions] == [1] * 4
    done(rd_admin.delete_topics(["rd-topics"]))
    assert code(rd_admin.delete_topics(["rd-topics"])) == "UNKNOWN_TOPIC_OR_PART"


def test_librdkafka_settings(rd_admin: Any) -> None:
    done(rd_admin.create_topics([confluent.NewTopic("rd-settings", 1, 1, config={"segment.ms": "9"})]))
    topic = confluent.ResourceType.TOPIC

    def shown(name: str) -> Any:
        return done(rd_admin.describe_configs([confluent.ConfigResource(topic, "rd-settings")]))[name]

    def changed(name: str, operation: Any, value: str | None) -> Any:
        entry = confluent.ConfigEntry(name, value, incremental_operation=operation)
        resource = confluent.ConfigResource(topic, "rd-settings", incremental_configs=[entry])
        return rd_admin.incremental_alter_configs([resource])

    operations = confluent.AlterConfigOpType
    done(changed("cleanup.policy", operations.APPEND, "compact"))
    assert shown("cleanup.policy").value == "delete,compact"
    done(changed("cleanup.policy", operations.DELETE, None))
    assert shown("cleanup.policy").value == "delete"
    assert code(changed("retention.ms", operations.SET, "soon")) == "INVALID_CONFIG"
    assert shown("segment.ms").value == "9"
    broker = done(rd_admin.describe_configs([confluent.ConfigResource(confluent.ResourceType.BROKER, "1")]))
    assert broker["num.partitions"].value == "1"


def test_librdkafka_offsets_and_records(broker: Broker, rd_admin: Any) -> None:
    done(rd_admin.create_topics([confluent.NewTopic("rd-records", 1, 1)]))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for at in range(5):
        producer.produce("rd-records", b"%d" % at, timestamp=1_700_000_000_000 + at)
    assert producer.flush(SECONDS) == 0
    partition = TopicPartition("rd-records", 0)

    def offset(spec: Any) -> int:
        return int(done(rd_admin.list_offsets({partition: spec})).offset)

    assert offset(confluent.OffsetSpec.earliest()) == 0
    assert offset(confluent.OffsetSpec.latest()) == 5
    assert offset(confluent.OffsetSpec.for_timestamp(1_700_000_000_002)) == 2
    assert offset(confluent.OffsetSpec.max_timestamp()) == 4
    assert done(rd_admin.delete_records([TopicPartition("rd-records", 0, 3)])).low_watermark == 3
    assert offset(confluent.OffsetSpec.earliest()) == 3
    assert code(rd_admin.delete_records([TopicPartition("rd-records", 0, 9)])) == "OFFSET_OUT_OF_RANGE"


def test_librdkafka_cluster(rd_admin: Any) -> None:
    cluster = rd_admin.describe_cluster().result(SECONDS)
    assert cluster.controller.id in {node.id for node in cluster.nodes}
