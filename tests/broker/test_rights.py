"""Each API refuses, or hides, what its row in the registry says a principal needs a right for.

The cases come from the registry: one for each right of each row. First everything is allowed but that right,
then everything. Requests are made from the layout of their messages, except where a right needs a certain
request.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock.broker.handlers
from penstock.broker import rights
from penstock.broker.acl import Operation, Resource
from penstock.broker.freshness import Fresh
from penstock.broker.registry import APIS, Api
from penstock.broker.rights import Right
from penstock.metadata.access import DelegationToken
from penstock.metadata.commands import SetDelegationToken
from penstock.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.api.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.wire.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.api.create_delegation_token import CreateDelegationTokenRequest
from penstock.wire.api.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.wire.api.describe_cluster import DescribeClusterRequest
from penstock.wire.api.describe_delegation_token import DescribeDelegationTokenRequest
from penstock.wire.api.describe_transactions import DescribeTransactionsRequest
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.list_groups import ListGroupsRequest
from penstock.wire.api.list_transactions import ListTransactionsRequest
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig, batch
from tests.broker.test_every_version import TOPICS, Builder

FREE = {
    "SaslHandshake", "ApiVersions", "SaslAuthenticate", "RenewDelegationToken", "ExpireDelegationToken",
}  # fmt: skip
TELL_OPERATIONS = {"Metadata", "DescribeCluster", "DescribeTopicPartitions"}
"""These ask for all that there is to do, because they tell it."""
FORBIDDEN = {"authorized", "newest_image", "caught_up", "confirmed", "made_ready", "leads_surely"}
"""What only dispatch and the rooms beside it ask for."""


def rights_of(row: Api) -> Iterator[Right]:
    if row.whole is not None:
        yield row.whole
    yield from row.items


CASES = [
    pytest.param(row, right, id=f"{row.name}-{right.operation.name}-{right.resource.name}")
    for row in APIS.values()
    for right in rights_of(row)
]


def covered(right: Right) -> set[tuple[Operation, Resource]]:
    """What gives the right."""
    pairs = {(right.operation, right.resource)}
    if right.or_cluster is not None:
        pairs.add((right.or_cluster, Resource.CLUSTER))
    if right.or_any is not None:
        pairs.add(right.or_any)
    return pairs


def denied_with(row: Api, right: Right) -> set[tuple[Operation, Resource]]:
    """What is taken away to see what the right is for. To see a token either of two rights is enough."""
    if row.name == "DescribeDelegationToken":
        return set().union(*(covered(one) for one in row.items))
    return covered(right)


class AllBut:
    """Everything is allowed but this. Remembers what it was asked for."""

    def __init__(self, *denied: tuple[Operation, Resource]) -> None:
        self._denied = set(denied)
        self.asked: set[tuple[Operation, Resource]] = set()

    def allow(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        return self.allow_any(principal, host, operation, resource)

    def allow_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        self.asked.add((operation, resource))
        return (operation, resource) not in self._denied


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """With two topics, a group of which a member reads the first, an open transaction that writes to it, and
    a token."""
    made = await Rig.start(
        tmp_path / "store",
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        delegation_token_secret_key="secret",
    )
    await made.upgrade()
    made.session.principal = "User:rig"
    token = DelegationToken("id", "User:other", "User:other", (), 0, 2**50, 2**50)
    await made.propose(SetDelegationToken(token))
    for name in TOPICS:
        await made.topic(name, 2)
    await made.ask(FindCoordinatorRequest(coordinator_keys=["group"]), FindCoordinatorResponse, 4)
    joins = ConsumerGroupHeartbeatRequest(
        group_id="group",
        member_id="member",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[TOPICS[0]],
        topic_partitions=[],
    )
    await made.ask(joins, ConsumerGroupHeartbeatResponse, 1)
    await made.ask(_find(rights.DESCRIBE_TRANSACTION), FindCoordinatorResponse, 4)
    begun = await made.ask(_producer(rights.WRITE_TRANSACTION), InitProducerIdResponse, 5)
    adds = _add(rights.WRITE_TRANSACTION)
    adds.v3_and_below_producer_id = begun.producer_id
    await made.ask(adds, AddPartitionsToTxnResponse, 3)
    yield made
    await made.close()


# -- certain requests ------------------------------------------------------------------------------------


def _create(right: Right) -> CreateTopicsRequest:
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=True)


def _delete(right: Right) -> DeleteTopicsRequest:
    name = TOPICS[0] if right.operation is Operation.DELETE else "absent"
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)


def _metadata(right: Right) -> MetadataRequest:
    if right.resource is Resource.CLUSTER:
        return MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    name = "new" if right.operation is Operation.CREATE else TOPICS[0]
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


def _produce(right: Right) -> ProduceRequest:
    transactional = right.resource is Resource.TRANSACTIONAL_ID
    records = batch(b"x", transactional=transactional, producer_id=1, producer_epoch=0, base_sequence=0)
    data = TopicProduceData(name=TOPICS[0], partition_data=[PartitionProduceData(records=records)])
    return ProduceRequest(
        transactional_id="mine" if transactional else None, acks=-1, timeout_ms=10_000, topic_data=[data]
    )


def _fetch(right: Right) -> FetchRequest:
    as_broker = right.resource is Resource.CLUSTER
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = FetchTopic(topic_id=TOPICS[0].encode().ljust(16, b"*"), partitions=[part])
    replica = ReplicaState(replica_id=2 if as_broker else -1)
    return FetchRequest(max_wait_ms=0, max_bytes=1000, replica_state=replica, topics=[topic])


def _find(right: Right) -> FindCoordinatorRequest:
    kind = {Resource.GROUP: 0, Resource.TRANSACTIONAL_ID: 1, Resource.CLUSTER: 2}[right.resource]
    return FindCoordinatorRequest(key_type=kind, coordinator_keys=["key"])


def _producer(right: Right) -> InitProducerIdRequest:
    transactional = right.resource is Resource.TRANSACTIONAL_ID
    return InitProducerIdRequest(
        transactional_id="mine" if transactional else None, transaction_timeout_ms=10_000
    )


def _add(right: Right) -> AddPartitionsToTxnRequest:
    if right is rights.BE_A_BROKER:
        return AddPartitionsToTxnRequest(transactions=[AddPartitionsToTxnTransaction(transactional_id="x")])
    topics = [AddPartitionsToTxnTopic(name=TOPICS[0], partitions=[0])]
    return AddPartitionsToTxnRequest(v3_and_below_transactional_id="mine", v3_and_below_topics=topics)


def _create_token(right: Right) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name="other")


EXAMPLES: dict[str, Callable[[Right], Any]] = {
    "AddPartitionsToTxn": _add,
    "DescribeTransactions": lambda _: DescribeTransactionsRequest(transactional_ids=["mine"]),
    "ListTransactions": lambda _: ListTransactionsRequest(),
    "CreateTopics": _create,
    "DeleteTopics": _delete,
    "Metadata": _metadata,
    "Produce": _produce,
    "Fetch": _fetch,
    "FindCoordinator": _find,
    "InitProducerId": _producer,
    "CreateDelegationToken": _create_token,
    "DescribeDelegationToken": lambda _: DescribeDelegationTokenRequest(owners=None),
    "ListGroups": lambda _: ListGroupsRequest(),
    "DescribeCluster": lambda _: DescribeClusterRequest(include_cluster_authorized_operations=True),
    "ConsumerGroupDescribe": lambda _: ConsumerGroupDescribeRequest(group_ids=["group"]),
}
VERSIONS = {"Metadata": 10, "Produce": 12, "AddPartitionsToTxn": 3}
"""Where the newest is not the one that needs most."""
CONFIG_KINDS = {Resource.TOPIC: (2, TOPICS[0]), Resource.GROUP: (32, "group"), Resource.CLUSTER: (4, "1")}
HIDDEN: dict[tuple[str, Right], Callable[[Any], Any]] = {
    ("ListGroups", rights.LIST_GROUP): lambda answer: answer.groups,
    ("DescribeCluster", rights.DESCRIBE_CLUSTER): lambda answer: answer.cluster_authorized_operations,
    ("Metadata", rights.DESCRIBE_CLUSTER): lambda answer: answer.cluster_authorized_operations,
    ("ListTransactions", rights.DESCRIBE_TRANSACTION): lambda answer: answer.transaction_states,
    ("DescribeTransactions", rights.DESCRIBE_TOPIC): lambda answer: answer.transaction_states[0].topics,
    ("DescribeDelegationToken", rights.DESCRIBE_TOKEN): lambda answer: answer.tokens,
    ("DescribeDelegationToken", rights.DESCRIBE_TOKENS_OF): lambda answer: answer.tokens,
}
"""What is left out for who may not see it, instead of a code."""


def request_for(row: Api, right: Right, version: int) -> Any:
    if row.name in EXAMPLES:
        return EXAMPLES[row.name](right)
    ids = {name: name.encode().ljust(16, b"*") for name in TOPICS}
    message = Builder(ids, 2).build(row, version)
    if row.name == "OffsetDelete":
        message.group_id = "group"  # An unknown one is the code of the whole answer.
    if "Configs" in row.name:
        for resource in message.resources:
            resource.resource_type, resource.resource_name = CONFIG_KINDS[right.resource]
        del message.resources[1:]
    return message


def codes(value: Any) -> Iterator[int]:
    """All error codes in an answer."""
    if isinstance(value, list):
        for item in value:
            yield from codes(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            found = getattr(value, name)
            if name.endswith("error_code"):
                yield found
            else:
                yield from codes(found)


@pytest.mark.parametrize(("row", "right"), CASES)
async def test_without_its_right(rig: Rig, row: Api, right: Right) -> None:
    of_brokers = right is rights.BE_A_BROKER
    version = row.max_version if of_brokers else VERSIONS.get(row.name, row.max_version)
    _request_class, response_class = row.messages()
    rig.broker.rules = denying = AllBut(*denied_with(row, right))
    denied = await rig.ask(request_for(row, right, version), response_class, version)
    rig.broker.rules = AllBut()
    allowed = await rig.ask(request_for(row, right, version), response_class, version)
    shown = HIDDEN.get((row.name, right))
    if shown is not None:
        assert not shown(denied)
        assert shown(allowed)
    else:
        # Fetch as a follower is refused in the name of the topics.
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if row.name == "Fetch" else right.code
        assert code in set(codes(denied))
        assert code not in set(codes(allowed))
    if row.name not in TELL_OPERATIONS:
        declared = set().union(*(covered(one) for one in rights_of(row)))
        assert denying.asked <= declared, "the row declares all that is asked for"


def test_every_other_api_is_free() -> None:
    assert {row.name for row in APIS.values() if not any(rights_of(row))} == FREE


@pytest.mark.parametrize("row", [row for row in APIS.values() if not row.raw], ids=lambda row: row.name)
def test_a_handler_is_as_its_row_says(row: Api) -> None:
    parameters = list(inspect.signature(row.handler()).parameters)
    assert parameters == ["broker", "request", "message", *(["permit"] if row.items else [])]
    assert (row.part("named") is not None) == (Fresh.KNOWN in row.fresh)
    assert not (Fresh.KNOWN in row.fresh and Fresh.NEWEST in row.fresh)
    assert row.whole is None or row.whole.resource in (Resource.CLUSTER, Resource.GROUP)


@pytest.mark.parametrize("path", sorted(Path(penstock.broker.handlers.__path__[0]).glob("*.py")), ids=str)
def test_no_handler_decides_on_rights_or_freshness_itself(path: Path) -> None:
    tree = ast.parse(path.read_text())
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    assert not words & FORBIDDEN


# -- what outlives a request -----------------------------------------------------------------------------


async def test_the_fast_way_is_lost_when_the_rules_change(rig: Rig) -> None:
    async def produced() -> int:
        answer = await rig.ask(_produce(rights.WRITE_TOPIC), ProduceResponse, 12)
        return answer.responses[0].partition_responses[0].error_code

    for rules in (None, AllBut()):
        rig.broker.rules = rules
        assert await produced() == ErrorCode.NONE
        fast = rig.session.fast
        assert fast is not None
        assert await produced() == ErrorCode.NONE
        assert rig.session.fast is fast, "the second one went the fast way"
        rig.broker.rules = AllBut((Operation.WRITE, Resource.TOPIC))
        assert await produced() == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_kept_answers_are_not_given_to_who_may_see_less(rig: Rig) -> None:
    async def seen() -> list[str | None]:
        names = [MetadataRequestTopic(name=name) for name in TOPICS]
        answer = await rig.ask(MetadataRequest(topics=names), MetadataResponse, 12)
        return [topic.name for topic in answer.topics if topic.error_code == ErrorCode.NONE]

    assert await seen() == list(TOPICS)
    rig.broker.rules = AllBut((Operation.DESCRIBE, Resource.TOPIC))
    assert await seen() == []
    rig.broker.rules = AllBut()
    assert await seen() == list(TOPICS)
