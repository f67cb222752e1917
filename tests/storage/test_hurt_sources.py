"""What is hurt where it lies is not made lasting by copying it: brought back in time, it is whole again."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.partition import Partition
from penstock.storage.settling.composing import HurtSourceError
from penstock.storage.settling.hurt_sources import LOG_SECONDS, OBJECT_SECONDS
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.objects import DamagedObjectError
from tests.storage.test_settling import NO_DELAY, PROMPT, collect, fill, forget_tails
from tests.storage.world import World, append_ok, batch, own_partition, read, read_all

BUSY, CALM = 0, 1
HURT = b"000002"
"""With it begins the second value of a partition that is filled by more than one."""


def files(world: World, prefix: str) -> list[Path]:
    assert isinstance(world.store, DirectoryStore)
    found = (path for path in Path(world.store.root, prefix).rglob("*") if path.is_file())
    return [path for path in found if HURT in path.read_bytes()]


@contextmanager
def hurt(path: Path) -> Iterator[None]:
    """The value at offset 1 is overwritten in its place, and then put back."""
    at = path.read_bytes().index(HURT)
    for contents in (bytes(6), HURT):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(contents)
        if contents != HURT:
            yield


async def opened(world: World) -> tuple[Ledger, list[Partition]]:
    world.policies["t"] = NO_DELAY
    ledger = await world.start(settings=PROMPT)
    topic = await world.create_topic("t", 2)
    return ledger, [own_partition(ledger, topic, at) for at in (BUSY, CALM)]


async def offsets(ledger: Ledger, partition: Partition) -> list[int]:
    forget_tails(ledger)
    return [offset for offset, _ in await read_all(ledger, partition)]


async def test_settling_waits_for_a_log_that_is_hurt(local: World) -> None:
    ledger, (partition, _) = await opened(local)
    await fill(ledger, partition, 4)
    (log,) = files(local, "wal")
    with hurt(log):
        for _ in range(2):
            with pytest.raises(HurtSourceError, match=r"^wal/1/1/\d+ is hurt between byte 444 and byte \d+$"):
                await ledger.settle()
            local.clock.advance(int(LOG_SECONDS * 400))
        assert partition.manifest is None
    assert await ledger.settle()
    assert partition.manifest is not None
    assert await offsets(ledger, partition) == [0, 1, 2, 3]


async def test_a_log_that_stays_hurt_is_settled_as_it_is(local: World) -> None:
    ledger, (partition, other) = await opened(local)
    await fill(ledger, partition, 4)
    await fill(ledger, other, 3)
    with hurt(files(local, "wal")[0]):
        with pytest.raises(HurtSourceError):
            await ledger.settle()
        local.clock.advance(int(LOG_SECONDS * 1000))
        assert await ledger.settle()
        forget_tails(ledger)
        with pytest.raises(DamagedObjectError):
            await read(ledger, partition, 1)
        assert (await read(ledger, partition, 2)).next_offset == 4
        assert await offsets(ledger, other) == [0, 1, 2]


async def test_what_is_hurt_is_not_merged(local: World) -> None:
    """Segments before and behind it are merged on, and so are other partitions."""
    ledger, (busy, calm) = await opened(local)
    for partition in (busy, calm):
        await fill(ledger, partition, 2)
    await ledger.settle()
    await collect(ledger)
    (shared,) = files(local, "segments")
    key = f"segments/1/1/{shared.name}"
    with hurt(shared):
        for _ in range(30):
            await fill(ledger, busy, 1)
            await ledger.settle()
            while await ledger._settler.merge():
                pass
        await fill(ledger, calm, 1)
        await ledger.settle()
        assert busy.manifest is not None and calm.manifest is not None
        assert busy.manifest.segments[0].key == key
        assert len(busy.manifest.segments) < 12
    assert await offsets(ledger, busy) == list(range(32))
    local.clock.advance(int(OBJECT_SECONDS * 1000))
    for _ in range(8):
        await fill(ledger, busy, 1)
        await ledger.settle()
        while await ledger._settler.merge():
            pass
    assert busy.manifest.segments[0].key != key
    assert await offsets(ledger, busy) == list(range(40))


async def test_what_is_hurt_is_not_moved(local: World) -> None:
    """Other objects are emptied meanwhile."""
    local.policies["t"] = local.policies["u"] = NO_DELAY
    ledger = await local.start(settings=PROMPT)
    large, small = await local.create_topic("u", 2), await local.create_topic("t")
    partition = own_partition(ledger, small)
    for _ in range(4):
        for at in range(36):
            await append_ok(ledger, own_partition(ledger, large, at % 2), batch(os.urandom(50_000)))
        await fill(ledger, partition, 1)
        await ledger.settle()
    assert partition.manifest is not None
    before = [segment.key for segment in partition.manifest.segments]
    await local.delete_topic(large)
    (path,) = files(local, "segments")
    with hurt(path):
        while await ledger._mover.move():
            pass
        after = [segment.key for segment in partition.manifest.segments]
        assert [old for old in before if old in after] == [before[2]] == [f"segments/1/1/{path.name}"]
    local.clock.advance(int(OBJECT_SECONDS * 10_000))
    await ledger._mover.move()
    assert before[2] not in [segment.key for segment in partition.manifest.segments]
    assert await offsets(ledger, partition) == [0, 1, 2, 3]
