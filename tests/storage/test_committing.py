"""Changes of manifests whose proposal is in doubt and takes effect late, while others are under way."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.log.policy import LogPolicy
from penstock.metadata.apply import apply_entry
from penstock.metadata.commands import AnyCommand, AssignLeaders, LeaderMove, SettlePartitions
from penstock.metadata.image import ClusterImage
from penstock.metadata.refusal import Refusal
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.partitions.answers import Surrendered
from penstock.storage.partitions.partition import Partition
from penstock.storage.settling.rewriting import Stretch
from penstock.storage.stores.memory import MemoryStore
from penstock.wire.buffers import Buffer
from tests.storage.test_settling import NO_DELAY, PROMPT, collect, fill, forget_tails
from tests.storage.world import Metadata, World, append_ok, batch, keys_of, own_partition, read_all


class LateMetadata(Metadata):
    """A metadata log that may lose an answer: the entry arrives when the test says so, or when the next
    proposal finds it, as it is with entries that are created by number."""

    def __init__(self) -> None:
        super().__init__()
        self.loses_next = False
        self._on_its_way: Sequence[AnyCommand] = ()

    async def propose(
        self, decide: Callable[[ClusterImage], Sequence[AnyCommand] | Refusal]
    ) -> ClusterImage | Refusal:
        self.arrive()
        if not self.loses_next:
            return await super().propose(decide)
        self.loses_next = False
        commands = decide(self.image)
        assert not isinstance(commands, Refusal)
        self._on_its_way = commands
        raise TimeoutError("no answer")

    def arrive(self) -> None:
        commands, self._on_its_way = self._on_its_way, ()
        if commands:
            self.commands += commands
            old, self.image = self.image, apply_entry(self.image, commands)
            for subscriber in list(self.subscribers):
                subscriber(old, self.image)

    def get_lost(self) -> None:
        """The entry never arrives."""
        self._on_its_way = ()


class HookedStore(MemoryStore):
    """Calls a hook before the next manifests are written."""

    def __init__(self) -> None:
        super().__init__()
        self.before_manifests: Callable[[], None] | None = None

    async def create(self, key: str, *parts: Buffer) -> bool:
        if key.startswith("manifests/") and self.before_manifests is not None:
            hook, self.before_manifests = self.before_manifests, None
            hook()
        return await super().create(key, *parts)


class LateWorld(World):
    def __init__(self) -> None:
        self.hooked = HookedStore()
        super().__init__(self.hooked)
        self.metadata: LateMetadata = LateMetadata()


@pytest.fixture
def late() -> LateWorld:
    return LateWorld()


async def begin(world: LateWorld, policy: LogPolicy = NO_DELAY) -> tuple[Ledger, Partition]:
    """A partition with a record that is settled, and five whose settling is in doubt."""
    world.policies["t"] = policy
    ledger = await world.start(settings=PROMPT)
    partition = own_partition(ledger, await world.create_topic("t"))
    await append_ok(ledger, partition, batch(b"0", timestamp=1))
    assert await ledger.settle()
    await fill(ledger, partition, 5)
    world.metadata.loses_next = True
    with pytest.raises(TimeoutError):
        await ledger.settle()
    assert partition.settled_end == 1
    return ledger, partition


async def retain(ledger: Ledger, partition: Partition) -> None:
    partition.policy = LogPolicy(retention_ms=1000, file_delete_delay_ms=0)
    assert await ledger._settler.retain() == 1
    assert partition.log_start_offset == 1


async def delete_and_retain(ledger: Ledger, partition: Partition) -> None:
    partition.advance_log_start(1)
    await ledger._settler.retain()


async def rewrite(ledger: Ledger, partition: Partition) -> None:
    assert partition.manifest is not None
    assert await ledger._settler._rewriter.rewrite([Stretch(partition, partition.manifest.segments)]) == 1


async def settle(ledger: Ledger, partition: Partition) -> None:
    await append_ok(ledger, partition, batch(b"6"))
    while not await ledger.settle():
        pass


async def clean(ledger: Ledger, partition: Partition) -> None:
    partition.policy = LogPolicy(compact=True, delete=False, segment_ms=0, min_cleanable_ratio=0.0)
    await ledger.clean()


@pytest.mark.parametrize("work", [retain, delete_and_retain, rewrite, settle, clean])
async def test_a_settling_that_comes_true_late_is_not_undone(late: LateWorld, work: Any) -> None:
    """It arrives while another change, computed from the manifest before it, is on its way."""
    ledger, partition = await begin(late)
    late.hooked.before_manifests = late.metadata.arrive
    await work(ledger, partition)
    late.metadata.arrive()
    assert partition.settled_end >= 6
    end = partition.high_watermark
    expected = await read_all(ledger, partition)
    topic = partition.topic_id
    assert await ledger.settle()
    await collect(ledger)
    await late.kill(ledger)
    ledger = await late.start(settings=PROMPT)
    partition = own_partition(ledger, topic)
    assert partition.high_watermark == end
    assert await read_all(ledger, partition) == expected
    assert await append_ok(ledger, partition, batch(b"next")) == [end]
    await late.close()


@pytest.mark.parametrize("arrives", [True, False])
async def test_copies_in_doubt_stay_until_it_is_known_what_became_of_them(
    late: LateWorld, arrives: bool
) -> None:
    ledger, partition = await begin(late)
    before = set(await keys_of(late.store, "segments/"))
    assert len(before) == 2
    await collect(ledger)
    await ledger._garbage.sweep(ledger._holdings.image, 0)
    await collect(ledger)
    assert set(await keys_of(late.store, "segments/")) == before, "they may be referred to any time"
    if not arrives:
        late.metadata.get_lost()
    await fill(ledger, partition, 1)
    # If it came true, what was copied together with the same records does not fit behind it.
    assert await ledger.settle() is not arrives
    assert await ledger.settle()
    await collect(ledger)
    forget_tails(ledger)
    assert [offset for offset, _ in await read_all(ledger, partition)] == list(range(7))
    assert partition.manifest is not None
    referred = {segment.key for segment in partition.manifest.segments}
    assert set(await keys_of(late.store, "segments/")) == referred
    assert len(referred) == (3 if arrives else 2)
    assert len(await keys_of(late.store, "manifests/")) == 1
    await late.close()


async def test_the_log_is_not_cut_where_a_partition_was_left_out(late: LateWorld) -> None:
    """One of two partitions changed meanwhile: what the log holds of it is still needed."""
    late.policies["t"] = NO_DELAY
    ledger = await late.start(settings=PROMPT)
    topic = await late.create_topic("t", 2)
    first, second = (own_partition(ledger, topic, at) for at in range(2))
    for partition in (first, second):
        await fill(ledger, partition, 3)

    def close() -> None:
        first.closed = True

    late.hooked.before_manifests = close
    await ledger.settle()
    assert second.settled_end == 3 and first.settled_end == 0
    commands = [one for one in late.metadata.commands if isinstance(one, SettlePartitions)]
    assert all(command.wal_start is None for command in commands)
    await collect(ledger)
    await late.kill(ledger)
    ledger = await late.start(settings=PROMPT)
    assert len(await read_all(ledger, own_partition(ledger, topic, 0))) == 3
    await late.close()


async def test_a_partition_is_given_away_only_when_nothing_of_it_is_in_doubt(late: LateWorld) -> None:
    """Else the settling in doubt could come true before the hand-over, which was computed without it."""
    ledger, partition = await begin(late)
    other = await late.start(2, settings=PROMPT)
    topic = partition.topic_id
    refs = await ledger.surrender([(topic, 0)])
    assert partition.settled_end == 6, "it was asked what became of it"
    move = LeaderMove(topic, 0, partition.leader_epoch, 2, settled=True, manifest=refs[topic, 0].manifest)
    await late.metadata.change(AssignLeaders(1, ledger.wal.epoch, (move,)))
    await other.update(late.metadata.image)
    await collect(ledger)
    await collect(other)
    theirs = own_partition(other, topic)
    assert [offset for offset, _ in await read_all(other, theirs)] == list(range(6))
    assert theirs.manifest is not None
    assert set(await keys_of(late.store, "segments/")) == {s.key for s in theirs.manifest.segments}
    await late.close()


async def test_what_is_given_away_names_the_manifest_that_it_was_computed_from(late: LateWorld) -> None:
    """So that whoever gives it away sees that another came in between, also if nothing was to be settled."""
    ledger = await late.start(settings=PROMPT)
    topic = await late.create_topic("t")
    partition = own_partition(ledger, topic)
    await fill(ledger, partition, 3)
    await ledger.settle()
    base = partition.manifest_ref
    assert base is not None
    assert await ledger.surrender([(topic, 0)]) == {(topic, 0): Surrendered(base, base)}
    ledger.resume([(topic, 0)])
    await fill(ledger, partition, 3)
    surrendered = (await ledger.surrender([(topic, 0)]))[topic, 0]
    assert surrendered.base == base != surrendered.manifest
    await late.close()


async def test_nothing_else_changes_a_partition_that_is_being_given_away(late: LateWorld) -> None:
    late.policies["t"] = NO_DELAY
    ledger = await late.start(settings=PROMPT)
    topic = await late.create_topic("t")
    partition = own_partition(ledger, topic)
    for _ in range(10):
        await fill(ledger, partition, 1)
        await ledger.settle()
    before = partition.manifest_ref
    await ledger.surrender([(topic, 0)])
    await ledger._settler.merge()
    await ledger._settler.retain()
    assert partition.manifest_ref == before
    ledger.resume([(topic, 0)])
    await collect(ledger)
    assert len(await read_all(ledger, partition)) == 10
    await late.close()
