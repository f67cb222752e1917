"""A small request cannot ask for an answer without bound by saying the same name again and again."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.groups.shard import GroupShard
from penstock.wire import encoding
from penstock.wire.api.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.api.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.wire.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig
from tests.groups.test_handlers import commit, find, join

TIMES = 2_000


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(
        tmp_path / "store", group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=1
    )
    await made.topic("t", 3)
    await find(made)
    yield made
    await made.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each question is put to a shard."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        asked = getattr(GroupShard, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return asked(*arguments, **options)

        monkeypatch.setattr(GroupShard, name, counting)

    for name in ("describe_group", "describe_consumer_group", "fetch_offsets"):
        count(name)
    return counted


async def test_what_is_named_often_is_looked_at_once(rig: Rig, looks: Counter[str]) -> None:
    member = (await join(rig, 3)).member_id
    await commit(rig, 9, {("t", 0): 7}, group="simple")
    names = ["g", "nobody"] * TIMES
    described = await rig.ask(DescribeGroupsRequest(groups=names), DescribeGroupsResponse, 5)
    assert [group.group_id for group in described.groups] == names
    assert {(g.group_id, *(m.member_id for m in g.members)) for g in described.groups} == {
        ("g", member),
        ("nobody",),
    }
    modern = await rig.ask(ConsumerGroupDescribeRequest(group_ids=names), ConsumerGroupDescribeResponse, 1)
    assert [group.group_id for group in modern.groups] == names
    groups = [OffsetFetchRequestGroup(group_id="simple", topics=None)] * TIMES
    fetched = await rig.ask(OffsetFetchRequest(groups=groups), OffsetFetchResponse, 8)
    assert [g.topics[0].partitions[0].committed_offset for g in fetched.groups] == [7] * TIMES
    assert looks == {"describe_group": 2, "describe_consumer_group": 2, "fetch_offsets": 1}


async def test_an_answer_that_would_be_too_large_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await join(rig, 3)
    names = ["g"] * TIMES
    request = DescribeGroupsRequest(groups=names)
    whole = await rig.ask(request, DescribeGroupsResponse, 5)
    assert {group.error_code for group in whole.groups} == {ErrorCode.NONE}
    monkeypatch.setattr(encoding, "ANSWER_BYTES_MAX", 40 * TIMES)
    refused = await rig.ask(request, DescribeGroupsResponse, 5)
    assert [group.group_id for group in refused.groups] == names
    assert {group.error_code for group in refused.groups} == {ErrorCode.INVALID_REQUEST}
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "an answer was too large api=DescribeGroups client='rig'"
    ]
