"""Records that the store lost: their readers are told so, and nobody else is held up."""

from __future__ import annotations

import pytest

from penstock.broker.shards.loading import load
from penstock.groups.shard import GroupShard
from penstock.log.manifest import HurtRange
from penstock.storage.partitions.partition import Partition
from penstock.storage.stores.objects import HurtRangeError
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig, batch
from tests.broker.test_fetch import fetch, fill


async def with_hurt_range(rig: Rig, topic: str) -> Partition:
    """Offsets 0 to 5, of which 2 and 3 are lost."""
    await rig.topic(topic)
    partition = rig.broker.ledger.partition(rig.broker.image.topics[topic].id, 0)
    assert partition is not None
    await fill(rig, topic, batch(b"0", b"1"))
    partition.pass_over(4)
    partition.hurt = (HurtRange(2, 4, "lost"),)
    await fill(rig, topic, batch(b"4", b"5"))
    partition.tail.hide_below(partition.high_watermark)
    return partition


@pytest.mark.parametrize("version", [4, 12, 18])
async def test_only_readers_of_a_hurt_range_get_an_error(rig: Rig, version: int) -> None:
    await with_hurt_range(rig, "hurt")
    await rig.topic("whole")
    await fill(rig, "whole", batch(b"0"))
    for offset in (2, 3):
        hurt, whole = await fetch(rig, version, [("hurt", 0, offset), ("whole", 0, 0)])
        assert hurt.error_code == ErrorCode.CORRUPT_MESSAGE
        assert whole.error_code == ErrorCode.NONE and whole.records
    for offset in (0, 4):
        (found,) = await fetch(rig, version, [("hurt", 0, offset)])
        assert found.error_code == ErrorCode.NONE and found.records


async def test_groups_are_not_loaded_without_records_that_are_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that committed would be told of an older commit. Where nobody knows whether anything was lost, they
    are loaded."""
    partition = await with_hurt_range(rig, "commits")
    loaded: list[bytes] = []
    monkeypatch.setattr(GroupShard, "load", lambda _self, key, _value, _producer: loaded.append(key))
    shard = GroupShard.__new__(GroupShard)
    with pytest.raises(HurtRangeError, match="offsets 2 to 3 of commits-0 are damaged"):
        await load(rig.broker.ledger, partition, shard)
    monkeypatch.setattr("penstock.broker.shards.loading.LOST_OFFSETS_MAX", 2)
    assert await load(rig.broker.ledger, partition, shard) == 4, "all but those that may be lost"
    assert loaded
