"""What a principal is told that may not do what it asks for: the code of the resource, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from penstock.broker.acl import Operation, Resource
from penstock.wire.api.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.wire.api.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.api.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from penstock.wire.api.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from penstock.wire.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.wire.api.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from penstock.wire.api.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from penstock.wire.api.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ZERO_UUID
from tests.broker.rig import Rig

Permit = Callable[..., None]
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Pairs(NamedTuple):
    """Allow these pairs of operation and name, and nothing else."""

    pairs: tuple[tuple[Operation, str], ...]

    def allow(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        return (operation, name) in self.pairs

    def allow_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return False


@pytest.fixture
def permit(rig: Rig) -> Permit:
    def allow(*pairs: tuple[Operation, str]) -> None:
        rig.broker.rules = Pairs(pairs)

    return allow


async def test_metadata_hides_what_may_not_be_described(rig: Rig, permit: Permit) -> None:
    seen, hidden = await rig.topic("seen"), await rig.topic("hidden")
    permit((Operation.DESCRIBE, "seen"), (Operation.DESCRIBE, "fresh"))
    everything = await rig.ask(MetadataRequest(topics=None), MetadataResponse, 12)
    assert [topic.name for topic in everything.topics] == ["seen"]
    names = [MetadataRequestTopic(name=name) for name in ("seen", "hidden", "nope", "fresh")]
    named = await rig.ask(MetadataRequest(topics=names), MetadataResponse, 12)
    assert {topic.name: (topic.error_code, topic.topic_id) for topic in named.topics} == {
        "seen": (0, seen.id),
        "hidden": (TOPIC_DENIED, ZERO_UUID),
        "nope": (TOPIC_DENIED, ZERO_UUID),
        "fresh": (TOPIC_DENIED, ZERO_UUID),
    }
    assert set(rig.broker.image.topics) == {"seen", "hidden"}, "nothing may be created"
    ids = [MetadataRequestTopic(name=None, topic_id=hidden.id)]
    (by_id,) = (await rig.ask(MetadataRequest(topics=ids), MetadataResponse, 12)).topics
    assert (by_id.error_code, by_id.name, by_id.topic_id) == (TOPIC_DENIED, None, hidden.id)


async def test_answers_are_not_kept_for_another_principal(rig: Rig, permit: Permit) -> None:
    await rig.topic("seen")
    message = MetadataRequest(topics=None)
    assert len((await rig.ask(message, MetadataResponse, 12)).topics) == 1
    permit()
    rig.session.principal = "User:stranger"
    assert (await rig.ask(message, MetadataResponse, 12)).topics == []


async def test_topics_are_neither_created_nor_deleted(rig: Rig, permit: Permit) -> None:
    topic = await rig.topic("kept")
    permit((Operation.CREATE, "mine"))
    wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("mine", "other")]
    created = await rig.ask(CreateTopicsRequest(topics=wanted), CreateTopicsResponse, 7)
    results = {result.name: result for result in created.topics}
    assert (results["other"].error_code, results["other"].error_message) == (
        TOPIC_DENIED,
        "Authorization failed.",
    )
    # May be created, but its settings may not be described.
    assert (results["mine"].error_code, results["mine"].topic_config_error_code) == (0, TOPIC_DENIED)
    assert (results["mine"].num_partitions, results["mine"].configs) == (-1, [])
    states = [
        DeleteTopicState(name="kept"),
        DeleteTopicState(topic_id=topic.id),
        DeleteTopicState(name="nope"),
    ]
    message = DeleteTopicsRequest(topics=states, timeout_ms=1000)
    deleted = await rig.ask(message, DeleteTopicsResponse, 6)
    assert {(result.name, result.error_code) for result in deleted.responses} == {
        ("kept", TOPIC_DENIED),
        (None, TOPIC_DENIED),
        ("nope", TOPIC_DENIED),
    }
    assert set(rig.broker.image.topics) == {"kept", "mine"}


async def test_settings_are_neither_shown_nor_changed(rig: Rig, permit: Permit) -> None:
    await rig.topic("orders")
    permit()
    asked = [DescribeConfigsResource(resource_type=kind, resource_name=name) for kind, name in RESOURCES]
    shown = await rig.ask(DescribeConfigsRequest(resources=asked), DescribeConfigsResponse, 4)
    assert [result.error_code for result in shown.results] == DENIED
    assert [result.configs for result in shown.results] == [[]] * 4
    wishes = [AlterConfigsResource(resource_type=kind, resource_name=name) for kind, name in RESOURCES]
    message = IncrementalAlterConfigsRequest(resources=wishes)
    changed = await rig.ask(message, IncrementalAlterConfigsResponse, 1)
    assert [response.error_code for response in changed.responses] == DENIED


RESOURCES = [(2, "orders"), (4, "1"), (32, "g"), (8, "1")]
DENIED = [TOPIC_DENIED, CLUSTER_DENIED, ErrorCode.GROUP_AUTHORIZATION_FAILED, CLUSTER_DENIED]


async def test_pages_of_partitions(rig: Rig, permit: Permit) -> None:
    await rig.topic("a")
    await rig.topic("b")
    permit((Operation.DESCRIBE, "b"))
    named = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a"), TopicRequest(name="b")])
    answer = await rig.ask(named, DescribeTopicPartitionsResponse, 0)
    assert {topic.name: topic.error_code for topic in answer.topics} == {"a": TOPIC_DENIED, "b": 0}
    answer = await rig.ask(DescribeTopicPartitionsRequest(), DescribeTopicPartitionsResponse, 0)
    assert [topic.name for topic in answer.topics] == ["b"]


async def test_the_cluster(rig: Rig, permit: Permit) -> None:
    permit()
    directories = await rig.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
    assert (directories.error_code, directories.results) == (CLUSTER_DENIED, [])
    resources = await rig.ask(ListConfigResourcesRequest(), ListConfigResourcesResponse, 1)
    assert (resources.error_code, resources.config_resources) == (CLUSTER_DENIED, [])
    rules = await rig.ask(DescribeAclsRequest(), DescribeAclsResponse, 3)
    assert (rules.error_code, rules.resources) == (CLUSTER_DENIED, [])
    created = await rig.ask(CreateAclsRequest(creations=[AclCreation()]), CreateAclsResponse, 3)
    assert [result.error_code for result in created.results] == [CLUSTER_DENIED]
    deleted = await rig.ask(DeleteAclsRequest(filters=[DeleteAclsFilter()]), DeleteAclsResponse, 3)
    assert [result.error_code for result in deleted.filter_results] == [CLUSTER_DENIED]
    idempotent = await rig.ask(InitProducerIdRequest(transactional_id=None), InitProducerIdResponse, 4)
    assert idempotent.error_code == CLUSTER_DENIED
    transactional = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=5)
    refused = await rig.ask(transactional, InitProducerIdResponse, 4)
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    message = DescribeClusterRequest(include_cluster_authorized_operations=True)
    cluster = await rig.ask(message, DescribeClusterResponse, 1)
    assert (cluster.error_code, cluster.cluster_authorized_operations) == (0, 0)
