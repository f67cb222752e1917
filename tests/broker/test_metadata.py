"""Metadata: who is there, what topics there are, and topics that appear because somebody asked."""

from __future__ import annotations

import msgspec
import pytest

from penstock.metadata.commands import FenceBroker, RegisterBroker
from penstock.metadata.image import Listener
from penstock.wire.api.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from penstock.wire.codec import encode
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ZERO_UUID
from tests.broker.rig import Rig

ALL_VERSIONS = range(14)
TOPIC_OPERATIONS = 3576
CLUSTER_OPERATIONS = 8096


def named(*names: str, create: bool = False, **fields: bool) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create, **fields)


def by_id(*ids: bytes) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


async def ask(rig: Rig, message: MetadataRequest, version: int) -> MetadataResponse:
    if version < 4:
        # There is no such field yet: creation is always allowed.
        message.allow_auto_topic_creation = True
    return await rig.ask(message, MetadataResponse, version)


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_one_image_gives_brokers_controller_and_leaders(rig: Rig, version: int) -> None:
    topic = await rig.topic("orders", 2)
    answer = await ask(rig, MetadataRequest(topics=None if version else []), version)
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
        (1, "127.0.0.1", 9092)
    ]
    assert answer.controller_id == (1 if version >= 1 else -1)
    assert answer.cluster_id == (rig.broker.image.cluster_id if version >= 2 else None)
    (found,) = answer.topics
    assert (found.error_code, found.name, found.is_internal) == (0, "orders", False)
    assert found.topic_id == (topic.id if version >= 10 else ZERO_UUID)
    assert found.partitions == [
        MetadataResponsePartition(
            partition_index=index,
            leader_id=1,
            leader_epoch=0 if version >= 7 else -1,
            replica_nodes=[1],
            isr_nodes=[1],
        )
        for index in range(2)
    ]


async def test_an_empty_list_means_all_topics_in_version_0_and_none_later(rig: Rig) -> None:
    await rig.topic("orders")
    assert [topic.name for topic in (await ask(rig, named(), 0)).topics] == ["orders"]
    for version in ALL_VERSIONS[1:]:
        assert (await ask(rig, named(), version)).topics == []


@pytest.mark.parametrize("version", ALL_VERSIONS[4:])
async def test_each_name_is_answered_once_with_its_own_code(rig: Rig, version: int) -> None:
    await rig.topic("orders")
    wrong = ["", ".", "..", "a b", "a/b", "ü", "n" * 250]
    answer = await ask(rig, named("orders", "nope", "orders", *wrong, "__consumer_offsets"), version)
    codes = {topic.name: topic.error_code for topic in answer.topics}
    assert len(answer.topics) == len(codes)
    assert codes == {
        "orders": 0,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "__consumer_offsets": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        **dict.fromkeys(wrong, ErrorCode.INVALID_TOPIC_EXCEPTION),
    }
    assert {topic.name for topic in answer.topics if topic.is_internal} == {"__consumer_offsets"}
    assert "nope" not in rig.broker.image.topics


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_a_topic_is_created_and_usable_in_the_same_answer(rig: Rig, version: int) -> None:
    answer = await ask(rig, named("fresh", "not a name", create=True), version)
    codes = {topic.name: (topic.error_code, len(topic.partitions)) for topic in answer.topics}
    assert codes == {"fresh": (0, 1), "not a name": (ErrorCode.INVALID_TOPIC_EXCEPTION, 0)}
    topic = rig.broker.image.topics["fresh"]
    assert rig.broker.ledger.partition(topic.id, 0) is not None
    again = await ask(rig, named("fresh", create=True), version)
    assert [found.topic_id for found in again.topics] == [topic.id if version >= 10 else ZERO_UUID]


async def test_creation_takes_the_defaults_and_can_be_switched_off(rig: Rig) -> None:
    rig.broker.settings = msgspec.structs.replace(rig.broker.settings, num_partitions=3)
    await ask(rig, named("three", create=True), 13)
    assert len(rig.broker.image.topics["three"].partitions) == 3
    rig.broker.settings = msgspec.structs.replace(rig.broker.settings, auto_create_topics_enable=False)
    answer = await ask(rig, named("never", create=True), 13)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "never" not in rig.broker.image.topics


async def test_no_more_is_created_than_one_request_may_create(rig: Rig) -> None:
    rig.broker.settings = msgspec.structs.replace(rig.broker.settings, num_partitions=5001)
    answer = await ask(rig, named("one", "two", create=True), 13)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not rig.broker.image.topics


async def test_internal_topics_are_created_as_the_coordinators_need_them(rig: Rig) -> None:
    await ask(rig, named("__consumer_offsets", create=True), 13)
    image = rig.broker.image
    assert len(image.topics["__consumer_offsets"].partitions) == 50
    assert image.config(2, "__consumer_offsets")["cleanup.policy"] == "compact"


async def test_a_name_that_collides_is_not_created(rig: Rig) -> None:
    await rig.topic("a.b")
    answer = await ask(rig, named("a_b", create=True), 13)
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert set(rig.broker.image.topics) == {"a.b"}


@pytest.mark.parametrize("version", [12, 13])
async def test_topics_by_id(rig: Rig, version: int) -> None:
    orders = await rig.topic("orders")
    answer = await ask(rig, by_id(orders.id, b"\x01" * 16, orders.id), version)
    assert [(topic.error_code, topic.name, topic.topic_id) for topic in answer.topics] == [
        (ErrorCode.UNKNOWN_TOPIC_ID, None, b"\x01" * 16),
        (0, "orders", orders.id),
    ]


async def test_names_and_ids_in_one_request_are_all_answered(rig: Rig) -> None:
    orders, bills = await rig.topic("orders"), await rig.topic("bills")
    message = MetadataRequest(
        topics=[
            MetadataRequestTopic(name=None, topic_id=orders.id),
            MetadataRequestTopic(name="bills"),
        ]
    )
    answer = await ask(rig, message, 12)
    assert {topic.topic_id for topic in answer.topics} == {orders.id, bills.id}


@pytest.mark.parametrize("version", [10, 11, 12, 13])
async def test_a_topic_without_name_and_id_refuses_the_request(rig: Rig, version: int) -> None:
    await rig.topic("orders")
    message = named("orders")
    assert message.topics is not None
    message.topics.append(MetadataRequestTopic(name=None))
    answer = await ask(rig, message, version)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("orders", ErrorCode.INVALID_REQUEST),
        ("", ErrorCode.INVALID_REQUEST),
    ]
    assert (answer.brokers, answer.cluster_id, answer.controller_id) == ([], None, -1)
    assert answer.error_code == (ErrorCode.INVALID_REQUEST if version >= 13 else 0)


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_are_refused_where_requests_may_not_use_them(rig: Rig, version: int) -> None:
    orders = await rig.topic("orders")
    message = MetadataRequest(topics=[MetadataRequestTopic(name="orders", topic_id=orders.id)])
    answer = await ask(rig, message, version)
    assert [(topic.topic_id, topic.error_code) for topic in answer.topics] == [
        (orders.id, ErrorCode.INVALID_REQUEST)
    ]


@pytest.mark.parametrize("version", ALL_VERSIONS[8:])
async def test_authorised_operations_only_if_asked_for(rig: Rig, version: int) -> None:
    await rig.topic("orders")
    unknown = -0x80000000
    silent = await ask(rig, named("orders"), version)
    assert silent.topics[0].topic_authorized_operations == unknown
    assert silent.cluster_authorized_operations == unknown
    message = named("orders", "nope", include_topic_authorized_operations=True)
    message.include_cluster_authorized_operations = version <= 10
    answer = await ask(rig, message, version)
    assert [topic.topic_authorized_operations for topic in answer.topics] == [TOPIC_OPERATIONS] * 2
    assert answer.cluster_authorized_operations == (CLUSTER_OPERATIONS if version <= 10 else unknown)


async def _second_broker(rig: Rig, listener: str) -> int:
    image = await rig.propose(RegisterBroker(2, (Listener(listener, "elsewhere", 9093),)))
    return image.brokers[2].epoch


async def test_a_dead_broker_is_not_listed_and_not_in_the_isr(rig: Rig) -> None:
    epoch = await _second_broker(rig, "PLAINTEXT")
    await rig.create("orders", assignments=[[1, 2]])
    alive = await ask(rig, named("orders"), 13)
    assert [broker.node_id for broker in alive.brokers] == [1, 2]
    assert alive.topics[0].partitions[0].isr_nodes == [1, 2]
    await rig.propose(FenceBroker(2, epoch, 0))
    answer = await ask(rig, named("orders"), 13)
    (partition,) = answer.topics[0].partitions
    assert [broker.node_id for broker in answer.brokers] == [1]
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1, 2], [1], [2])
    (old,) = (await ask(rig, named("orders"), 0)).topics[0].partitions
    assert (old.error_code, old.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1])


async def test_a_leader_that_clients_cannot_reach_is_not_named(rig: Rig) -> None:
    await _second_broker(rig, "INSIDE")
    await rig.create("orders", assignments=[[2]])
    for version in ALL_VERSIONS:
        answer = await ask(rig, named("orders"), version)
        (partition,) = answer.topics[0].partitions
        expected = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
        assert (partition.leader_id, partition.error_code) == (-1, expected)
        assert [broker.node_id for broker in answer.brokers] == [1]


async def test_an_answer_is_encoded_once_per_image(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def counting(message: MetadataResponse, version: int) -> bytes:
        encoded.append(version)
        return encode(message, version)

    monkeypatch.setattr("penstock.broker.handlers.metadata.encode", counting)
    await rig.topic("orders")
    first = await ask(rig, named("orders"), 12)
    assert await ask(rig, named("orders"), 12) == first
    assert encoded == [12]
    await ask(rig, named("orders"), 11)
    assert encoded == [12, 11]
    await rig.topic("bills")
    assert len((await ask(rig, MetadataRequest(topics=None), 12)).topics) == 2
    await ask(rig, named("orders"), 12)
    assert encoded == [12, 11, 12, 12]
