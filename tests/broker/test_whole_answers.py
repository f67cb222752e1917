"""What is asked for is answered, whatever happens: by failing handlers, and about what others just made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.context import Broker
from penstock.broker.registry import APIS
from penstock.clock import SystemClock
from penstock.cluster.metadata_log import MetadataLog, MetadataUnavailableError
from penstock.metadata.commands import CreateTopic
from penstock.storage.stores.opening import open_store
from penstock.wire.api.alter_configs import AlterConfigsRequest, AlterConfigsResource, AlterConfigsResponse
from penstock.wire.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.api.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.api.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.wire.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from penstock.wire.api.describe_producers import (
    TopicRequest as ProducersTopic,
)
from penstock.wire.api.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from penstock.wire.api.describe_topic_partitions import (
    TopicRequest as PartitionsTopic,
)
from penstock.wire.api.incremental_alter_configs import (
    AlterConfigsResource as ChangedResource,
)
from penstock.wire.api.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ApiMessage
from tests.broker.rig import Rig

ASKED: list[tuple[ApiMessage, type[ApiMessage]]] = [
    (MetadataRequest(topics=[MetadataRequestTopic(name="asked")]), MetadataResponse),
    (
        ListOffsetsRequest(topics=[ListOffsetsTopic(name="asked", partitions=[ListOffsetsPartition()])]),
        ListOffsetsResponse,
    ),
    (CreateTopicsRequest(topics=[CreatableTopic(name="asked", num_partitions=1)]), CreateTopicsResponse),
    (DeleteTopicsRequest(topic_names=["asked"], timeout_ms=100), DeleteTopicsResponse),
    (
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="asked", partitions=[DeleteRecordsPartition()])]
        ),
        DeleteRecordsResponse,
    ),
    (InitProducerIdRequest(transactional_id=None), InitProducerIdResponse),
    (
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic="asked", partitions=[OffsetForLeaderPartition()])]
        ),
        OffsetForLeaderEpochResponse,
    ),
    (
        DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name="asked")]),
        DescribeConfigsResponse,
    ),
    (
        AlterConfigsRequest(resources=[AlterConfigsResource(resource_type=2, resource_name="asked")]),
        AlterConfigsResponse,
    ),
    (
        IncrementalAlterConfigsRequest(resources=[ChangedResource(resource_type=2, resource_name="asked")]),
        IncrementalAlterConfigsResponse,
    ),
    (
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="asked", count=2)], timeout_ms=100),
        CreatePartitionsResponse,
    ),
    (
        DescribeProducersRequest(topics=[ProducersTopic(name="asked", partition_indexes=[0])]),
        DescribeProducersResponse,
    ),
    (DescribeTopicPartitionsRequest(topics=[PartitionsTopic(name="asked")]), DescribeTopicPartitionsResponse),
]


def error_codes(value: Any) -> list[int]:
    """Every error code in a message, however deep."""
    if isinstance(value, list):
        return [code for part in value for code in error_codes(part)]
    fields = getattr(value, "__struct_fields__", ())
    found = [value.error_code] if "error_code" in fields else []
    return found + [code for field in fields for code in error_codes(getattr(value, field))]


def versions_of(message: ApiMessage) -> range:
    row = APIS[message.api_key]
    # DeleteTopics 6 asks in another field.
    return range(row.min_version, min(row.max_version, 5 if row.name == "DeleteTopics" else 99) + 1)


@pytest.mark.parametrize(("message", "response"), ASKED, ids=lambda value: type(value).__name__)
async def test_a_handler_that_fails_is_an_error_for_all_that_was_asked(
    rig: Rig,
    message: ApiMessage,
    response: type[ApiMessage],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Broker, "image", property(broken))
    monkeypatch.setattr(Broker, "services", property(broken))
    monkeypatch.setattr(rig.broker.metadata, "propose", broken)
    for version in versions_of(message):
        caplog.clear()
        answer = await rig.ask(message, response, version)
        codes = [code for code in error_codes(answer) if code != 0]
        assert codes, version
        assert set(codes) == {ErrorCode.UNKNOWN_SERVER_ERROR}
        if response is not InitProducerIdResponse:
            assert "asked" in repr(answer)
        assert "ZeroDivisionError" in caplog.text


CHANGES = [pair for pair in ASKED if pair[1] in {CreateTopicsResponse, DeleteTopicsResponse}] + [
    pair
    for pair in ASKED
    if pair[1] in {CreatePartitionsResponse, AlterConfigsResponse, IncrementalAlterConfigsResponse}
]


@pytest.mark.parametrize(("message", "response"), CHANGES, ids=lambda value: type(value).__name__)
async def test_a_metadata_log_that_cannot_be_written_is_never_a_success(
    rig: Rig, message: ApiMessage, response: type[ApiMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(decide: object) -> None:
        raise MetadataUnavailableError("the store does not answer")

    monkeypatch.setattr(rig.broker.metadata, "propose", unavailable)
    answer = await rig.ask(message, response, versions_of(message)[-1])
    assert [code for code in error_codes(answer) if code != 0] == [ErrorCode.REQUEST_TIMED_OUT]


def about(name: str) -> list[tuple[ApiMessage, type[ApiMessage], int]]:
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    configs = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name=name)])
    offsets = ListOffsetsRequest(
        replica_id=-1,
        topics=[ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(timestamp=-1)])],
    )
    partitions = DescribeTopicPartitionsRequest(topics=[PartitionsTopic(name=name)])
    producers = DescribeProducersRequest(topics=[ProducersTopic(name=name, partition_indexes=[0])])
    return [
        (metadata, MetadataResponse, 12),
        (configs, DescribeConfigsResponse, 4),
        (offsets, ListOffsetsResponse, 6),
        (partitions, DescribeTopicPartitionsResponse, 0),
        (producers, DescribeProducersResponse, 0),
    ]


@pytest.mark.parametrize("at", range(5))
async def test_a_topic_that_another_broker_made_is_known_when_asked_for(
    rig: Rig, tmp_path: Path, at: int
) -> None:
    store = open_store(str(tmp_path / "store"))
    other = MetadataLog(store, SystemClock())
    await other.open()
    await other.propose(lambda _: (CreateTopic(b"*" * 16, "theirs", ((1,),)),))
    message, response, version = about("theirs")[at]
    assert set(error_codes(await rig.ask(message, response, version))) == {0}
    await other.close()
    await store.close()
