"""A partition of `__consumer_offsets` becomes a shard: the same one, however its records are taken."""

import asyncio
import random
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from penstock.broker.shards.loading import Loading, load
from penstock.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    to_record,
)
from penstock.groups.shard import GroupShard
from penstock.settings.groups import GroupSettings
from penstock.shards.shard import Now, Record
from penstock.storage.ledger.ledger import Ledger, Partition
from penstock.storage.partitions.answers import Appended, Slice
from penstock.wire import batch
from penstock.wire.api.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from penstock.wire.errors import ErrorCode
from penstock.wire.markers import ABORT, COMMIT, marker_batch
from tests.broker.rig import Rig
from tests.groups.world import make_image
from tests.storage.world import admitted

GROUPS = ("g0", "g1", "g2")
NOBODY = -1

# What is in the log: records with the producer of their transaction, or a producer and whether it commits.
Entry = tuple[list[Record], int] | tuple[int, bool]


def new_shard() -> GroupShard:
    return GroupShard(GroupSettings(), make_image({"t": 3}), lambda: "id")


def history(seed: int) -> Iterator[Entry]:
    chance = random.Random(seed)
    for at in range(60):
        if chance.random() < 0.2:
            yield chance.choice((7, 8)), chance.random() < 0.5
            continue
        producer = chance.choice((NOBODY, NOBODY, NOBODY, 7, 8))
        yield [one_record(chance, at, producer) for _ in range(chance.randint(1, 4))], producer


def one_record(chance: random.Random, at: int, producer: int) -> Record:
    group = chance.choice(GROUPS)
    if producer == NOBODY and chance.random() < 0.2:
        state = GroupMetadataValue(protocol_type="consumer", generation=at)
        return to_record(GroupMetadataKey(group), chance.choice((state, None)))
    commit = OffsetCommitValue(offset=at, commit_timestamp=at)
    gone = producer == NOBODY and chance.random() < 0.2
    return to_record(OffsetCommitKey(group, "t", chance.randrange(3)), None if gone else commit)


def encoded(entry: Entry, offset: int) -> tuple[bytes, int]:
    """The entry as a batch at this offset, and the offset after it."""
    content, more = entry
    if isinstance(content, int):
        data = marker_batch(COMMIT if more else ABORT, content, 0, 0, 0)
        count = 1
    else:
        records = [batch.Record(at, 0, record.key, record.value) for at, record in enumerate(content)]
        data = batch.build_batch(records, producer_id=more, producer_epoch=0, transactional=more != NOBODY)
        count = len(records)
    stamped = bytearray(data)
    batch.stamp(stamped, 0, offset, 0)
    return bytes(stamped), offset + count


def one_by_one(entries: list[Entry]) -> GroupShard:
    shard = new_shard()
    for content, more in entries:
        if isinstance(content, int):
            shard.load_marker(content, committed=bool(more))
        else:
            for record in content:
                shard.load(record.key, record.value, more)
    return shard


def state(shard: GroupShard) -> object:
    """Offsets of every group, those that a transaction may yet bring, and what is known of the groups."""
    shard.loaded(Now(0, 0))
    every = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1, 2])]
    asked = [OffsetFetchRequestGroup(group_id=group, topics=every) for group in GROUPS]
    offsets = [shard.fetch_offsets(each, require_stable=stable) for each in asked for stable in (False, True)]
    described = [shard.describe_group(group, 5) for group in GROUPS]
    return offsets, described


@pytest.mark.parametrize("seed", range(40))
async def test_only_the_last_record_of_a_key_counts(seed: int) -> None:
    entries = list(history(seed))
    loading_into = new_shard()
    loading = Loading(loading_into)
    log, offset = [], 0
    for entry in entries:
        data, offset = encoded(entry, offset)
        log.append(data)
    cut = seed % len(log)
    reached = await loading.take(log[:cut], 0)
    assert await loading.take(log[cut:], reached) == offset
    await loading.apply()
    assert loading.count == sum(len(content) for content, _ in entries if isinstance(content, list))
    assert state(loading_into) == state(one_by_one(entries))


async def test_a_slice_may_begin_before_what_is_wanted() -> None:
    records = [to_record(OffsetCommitKey("g0", "t", 0), OffsetCommitValue(offset=at)) for at in range(5)]
    data, _ = encoded((records, NOBODY), 10)
    loading = Loading(new_shard())
    assert await loading.take([data], 13) == 15
    assert loading.count == 2


async def test_a_marker_that_is_written_while_the_shard_is_loaded_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator of its transaction tells a shard that serves, and no other."""
    rig = await Rig.start(tmp_path / "store")
    topic = await rig.topic("offsets")
    ledger = rig.broker.ledger
    partition = ledger.partition(topic.id, 0)
    assert partition is not None
    commit = to_record(OffsetCommitKey("g0", "t", 0), OffsetCommitValue(offset=5))
    assert isinstance(await appended(ledger, partition, ([commit], NOBODY)), Appended)
    real_read = ledger.read
    entries: list[Entry] = [
        ([to_record(OffsetCommitKey("g0", "t", 1), OffsetCommitValue(offset=6))], NOBODY),
        (7, True),
    ]

    def read(*arguments: object, **options: int) -> Slice | Awaitable[Slice]:
        if not entries:
            return real_read(*arguments, **options)  # type: ignore[arg-type]
        return later(entries.pop(0), *arguments, **options)

    async def later(entry: Entry, *arguments: object, **options: int) -> Slice:
        found = real_read(*arguments, **options)  # type: ignore[arg-type]
        assert isinstance(await appended(ledger, partition, entry), Appended)
        return found if isinstance(found, Slice) else await found

    monkeypatch.setattr(ledger, "read", read)
    told = Told()
    assert await load(ledger, partition, told) == 2
    assert told.markers == [(7, True)]
    assert partition.high_watermark == 3
    await rig.close()


class Told(GroupShard):
    """Remembers the markers that it was told of."""

    __slots__ = ("markers",)

    def __init__(self) -> None:
        super().__init__(GroupSettings(), make_image({"t": 3}), lambda: "id")
        self.markers: list[tuple[int, bool]] = []

    def load_marker(self, producer_id: int, *, committed: bool) -> None:
        super().load_marker(producer_id, committed=committed)
        self.markers.append((producer_id, committed))


async def appended(ledger: Ledger, partition: Partition, entry: Entry) -> Appended | ErrorCode:
    done: asyncio.Future[Appended | ErrorCode] = asyncio.get_running_loop().create_future()
    ledger.append(partition, admitted(bytearray(encoded(entry, 0)[0])), done.set_result)
    return await done
