"""Records that the store lost: what a partition does with the range, and what it never takes for damage."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.log.manifest import HurtRange
from penstock.log.verifying import SUMMED_BATCHES_MIN
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.answers import Appended
from penstock.storage.partitions.partition import Partition
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import HurtRangeError, StoreRefusedError, StoreUnavailableError
from penstock.testing.waiting import eventually
from penstock.wire.errors import ErrorCode
from tests.storage.test_settling import fill, forget_tails
from tests.storage.world import World, append, append_ok, batch, own_partition, read, read_all

HURT = 2


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(DirectoryStore(str(tmp_path / "store")))
    yield made
    await made.close()


async def lose(world: World, *batches: bytearray) -> tuple[Ledger, Partition, bytes]:
    """A partition of five batches, the one numbered HURT lost; its broker was killed and started again."""
    ledger = await world.start()
    topic = await world.create_topic("t")
    for number in range(5):
        one = batches[number] if batches else batch(b"record %d" % number)
        await append_ok(ledger, own_partition(ledger, topic), one)
    await world.kill(ledger)
    assert isinstance(world.store, DirectoryStore)
    path = next(path for path in Path(world.store.root).glob("wal/*/*/*") if path.name.isdecimal())
    stored = bytearray(path.read_bytes())
    at = stored.index(b"record %d" % HURT)
    start, end = stored.rindex(b"PWF1", 0, at), stored.index(b"PWF1", at)
    stored[start:end] = b"x" * (end - start)
    path.write_bytes(stored)
    ledger = await world.start()
    return ledger, own_partition(ledger, topic), topic


def ranges(partition: Partition) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in partition.hurt]


async def require_hurt(ledger: Ledger, partition: Partition) -> None:
    assert ranges(partition) == [(HURT, HURT + 1)]
    with pytest.raises(HurtRangeError) as hurt:
        await read(ledger, partition, HURT)
    assert (hurt.value.topic, hurt.value.partition) == ("t", 0)
    assert (hurt.value.start, hurt.value.end) == (HURT, HURT + 1)
    assert (await read(ledger, partition, 0)).next_offset == HURT
    assert (await read(ledger, partition, HURT + 1)).next_offset == partition.high_watermark


async def test_a_hurt_range_is_said_and_everything_else_goes_on(world: World) -> None:
    ledger, partition, _topic = await lose(world)
    await require_hurt(ledger, partition)
    assert await append_ok(ledger, partition, batch(b"next")) == [5]
    await require_hurt(ledger, partition)


async def test_a_hurt_range_is_settled_and_survives(world: World) -> None:
    ledger, partition, topic = await lose(world)
    assert await ledger.settle()
    assert partition.manifest is not None and len(partition.manifest.hurt) == 1
    await require_hurt(ledger, partition)
    await world.kill(ledger)
    ledger = await world.start()
    await require_hurt(ledger, own_partition(ledger, topic))


async def test_deleting_records_drops_a_hurt_range(world: World) -> None:
    ledger, partition, _topic = await lose(world)
    assert await ledger.delete_records(partition, HURT + 1) == HURT + 1
    assert partition.hurt == ()
    assert [offset for offset, _ in await read_all(ledger, partition)] == [3, 4]
    assert await ledger.settle()
    assert partition.manifest is not None and partition.manifest.hurt == ()


async def test_a_part_of_a_range_that_is_deleted_is_not_told_any_more(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    await fill(ledger, partition, 9)
    partition.hurt = (HurtRange(1, 3), HurtRange(5, 8, "why"))
    partition.advance_log_start(6)
    assert list(partition.hurt) == [HurtRange(6, 8, "why")]


async def test_a_read_that_finds_nothing_before_a_hurt_range_says_so(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    await append_ok(ledger, partition, batch(b"a"))
    partition.pass_over(10)
    await append_ok(ledger, partition, batch(b"b"))
    partition.tail.hide_below(11)
    partition.hurt = (HurtRange(5, 10),)
    # From 1 to 4 there is nothing, as compaction leaves it.
    with pytest.raises(HurtRangeError):
        await read(ledger, partition, 1)


async def test_an_idempotent_producer_goes_on_after_a_hurt_range(world: World) -> None:
    def sent(number: int) -> bytearray:
        return batch(b"record %d" % number, producer_id=7, producer_epoch=0, base_sequence=number)

    # The last batch that the partition still has is not the last that was acknowledged.
    ledger, partition, _topic = await lose(world, *map(sent, range(5)))
    (answer,) = await append(ledger, partition, sent(5))
    assert isinstance(answer, Appended) and answer.base_offset == 5
    (answer,) = await append(ledger, partition, sent(9))
    assert answer is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    partition.pass_over(20)
    (answer,) = await append(ledger, partition, sent(9))
    assert isinstance(answer, Appended) and answer.base_offset == 20


async def test_a_transaction_goes_on_after_a_hurt_range(world: World) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    options: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    await append_ok(ledger, partition, batch(b"begin", base_sequence=0, **options))
    partition.pass_over(10)
    (answer,) = await append(ledger, partition, batch(b"on", base_sequence=4, **options))
    assert isinstance(answer, Appended)
    assert partition.ongoing == {7: 0}, "it is still the same transaction"


@pytest.mark.parametrize("settled", [False, True])
async def test_what_rots_after_it_was_read_is_hurt_and_alone_is(world: World, settled: bool) -> None:
    ledger = await world.start()
    partition = own_partition(ledger, await world.create_topic("t"))
    values = await fill(ledger, partition, 3 * SUMMED_BATCHES_MIN)
    if settled:
        await ledger.settle()
    forget_tails(ledger)
    for _ in range(2):
        assert [value for _, value in await read_all(ledger, partition)] == values
    assert isinstance(world.store, DirectoryStore)
    kind = "segments" if settled else "wal"
    paths = [path for path in Path(world.store.root, kind).rglob("*") if path.is_file()]
    (path,) = (path for path in paths if values[HURT] in path.read_bytes())
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(values[HURT]))
        file.write(b"x")
    with pytest.raises(HurtRangeError) as hurt:
        await read(ledger, partition, HURT)
    assert (hurt.value.start, hurt.value.end) == (HURT, HURT + 1)
    assert (await read(ledger, partition, 0)).next_offset == HURT
    assert (await read(ledger, partition, HURT + 1)).next_offset == len(values)
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"x" + values[HURT][1:]))
        file.write(values[HURT][:1])
    assert [value for _, value in await read_all(ledger, partition)] == values


class RefusingStore(MemoryStore):
    """Refuses to show some objects, as a key service that is out of order does."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = ""
        self.error: type[StoreUnavailableError] = StoreRefusedError

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if self.refused and key.startswith(self.refused):
            raise self.error("403")
        return await super().get_range(key, start, length)


@pytest.mark.parametrize("error", [StoreRefusedError, StoreUnavailableError])
@pytest.mark.parametrize("settled", [False, True])
async def test_what_is_refused_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, settled: bool, error: type[StoreUnavailableError]
) -> None:
    monkeypatch.setattr("penstock.storage.ledger.takeover._RETRY_MAX_SECONDS", 0.1)
    store = RefusingStore()
    world = World(store)
    ledger = await world.start()
    topic, other = await world.create_topic("t"), await world.create_topic("other")
    await fill(ledger, own_partition(ledger, topic), 3)
    await ledger.settle()
    info = world.metadata.image.partition(topic, 0)
    assert info is not None and info.manifest is not None
    await fill(ledger, own_partition(ledger, other), 2)
    if settled:
        await ledger.settle()
    await world.kill(ledger)
    store.refused, store.error = (info.manifest.key if settled else f"wal/1/{ledger.wal.epoch}/"), error
    ledger = await world.start()
    assert ledger.partition(topic, 0) is None and ledger.damaged(topic, 0) is None
    assert (ledger.partition(other, 0) is not None) == settled, "one that is refused holds up nobody else"
    # What is created meanwhile does not wait for it.
    fresh = await world.create_topic("fresh")
    await append_ok(ledger, own_partition(ledger, fresh), batch(b"fine"))
    store.refused = ""
    await eventually(
        lambda: ledger.partition(topic, 0) is not None and ledger.partition(other, 0) is not None
    )
    assert len(await read_all(ledger, own_partition(ledger, topic))) == 3
    assert len(await read_all(ledger, own_partition(ledger, other))) == 2
    await world.close()
