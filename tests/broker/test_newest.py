"""What another broker changed a moment ago is in the next answer, and an outage of the store delays none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import freshness
from penstock.clock import SystemClock
from penstock.cluster.metadata_log import MetadataLog
from penstock.metadata.commands import AnyCommand, CreateTopic, RegisterBroker, SetConfig
from penstock.metadata.image import TOPIC_CONFIG, ClusterImage, Listener
from penstock.storage.stores.opening import open_store
from penstock.wire.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.wire.api.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

from .rig import Rig


class Other:
    """Another broker's end of the same log. The rig does not follow the log by itself."""

    def __init__(self, log: MetadataLog) -> None:
        self._log = log

    async def propose(self, *commands: AnyCommand) -> None:
        assert isinstance(await self._log.propose(lambda _: commands), ClusterImage)

    async def create(self, name: str) -> None:
        await self.propose(CreateTopic(name.encode().ljust(16, b"*"), name, ((1,),)))

    async def join(self) -> None:
        await self.propose(RegisterBroker(2, (Listener("PLAINTEXT", "127.0.0.1", 9093),), rack="r2"))


@pytest.fixture
async def other(rig: Rig, tmp_path: Path) -> AsyncIterator[Other]:
    store = open_store(str(tmp_path / "store"))
    log = MetadataLog(store, SystemClock())
    await log.open()
    yield Other(log)
    await log.close()
    await store.close()


async def listed(rig: Rig, version: int = 12) -> list[str | None]:
    everything: list[MetadataRequestTopic] | None = [] if version == 0 else None
    answer = await rig.ask(MetadataRequest(topics=everything), MetadataResponse, version)
    return [topic.name for topic in answer.topics]


@pytest.mark.parametrize("version", [0, 1, 4, 12, 13])
async def test_a_topic_created_through_another_broker_is_listed_at_once(
    rig: Rig, other: Other, version: int
) -> None:
    assert await listed(rig, version) == []
    await other.create("new")
    assert await listed(rig, version) == ["new"]


async def test_a_broker_that_joined_a_moment_ago_is_in_every_list(rig: Rig, other: Other) -> None:
    await other.join()
    answer = await rig.ask(MetadataRequest(topics=[]), MetadataResponse, 12)
    assert [(one.node_id, one.rack) for one in answer.brokers] == [(1, None), (2, "r2")]


async def test_the_cluster_is_described_as_it_is_now(rig: Rig, other: Other) -> None:
    await other.join()
    answer = await rig.ask(DescribeClusterRequest(endpoint_type=1), DescribeClusterResponse, 1)
    assert [one.broker_id for one in answer.brokers] == [1, 2]


async def test_all_topics_are_described_as_they_are_now(rig: Rig, other: Other) -> None:
    await other.create("new")
    request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=100)
    answer = await rig.ask(request, DescribeTopicPartitionsResponse, 0)
    assert [topic.name for topic in answer.topics] == ["new"]


async def test_a_setting_changed_through_another_broker_is_shown_at_once(rig: Rig, other: Other) -> None:
    await rig.topic("old")
    await other.propose(SetConfig(TOPIC_CONFIG, "old", {"retention.ms": "1234"}))
    resource = DescribeConfigsResource(resource_type=2, resource_name="old")
    request = DescribeConfigsRequest(resources=[resource])
    answer = await rig.ask(request, DescribeConfigsResponse, 4)
    values = {entry.name: entry.value for entry in answer.results[0].configs}
    assert values["retention.ms"] == "1234"


async def test_the_coordinator_is_looked_for_where_it_is_now(rig: Rig, other: Other) -> None:
    await other.join()
    await other.propose(CreateTopic(b"o" * 16, "__consumer_offsets", ((2,),)))
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    answer = await rig.ask(request, FindCoordinatorResponse, 4)
    assert [(found.error_code, found.node_id) for found in answer.coordinators] == [(0, 2)]


async def test_while_the_store_is_out_the_image_at_hand_answers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.topic("known")

    async def hang(*_: Any) -> bytes | None:
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(freshness, "CATCH_UP_SECONDS_MAX", 0.01)
    monkeypatch.setattr(rig.broker.metadata._store, "get", hang)
    assert await listed(rig) == ["known"]
    # Once the outage is known, nobody waits at all.
    monkeypatch.setattr(freshness, "CATCH_UP_SECONDS_MAX", 3600.0)
    rig.broker.metadata.unavailable_since = 0.0
    assert await listed(rig) == ["known"]
