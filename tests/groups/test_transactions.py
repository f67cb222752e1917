"""Offsets that are committed by transactions: visible with the commit, never before and never without."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from penstock.groups.records import OffsetCommitKey, OffsetCommitValue, read_record
from penstock.settings.groups import GroupSettings
from penstock.shards.journal import Durable, Failed, Journal
from penstock.shards.shard import Producer, Record
from penstock.wire.api.delete_groups import DeleteGroupsResponse
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.wire.api.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from penstock.wire.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.errors import ErrorCode
from tests.groups.world import World, Written

MINUTE_MS = 60_000
UNSTABLE = "unstable"
NOTHING = -1


def commit(world: World, offset: int, *, group: str = "g", topic: str = "t", partition: int = 0) -> int:
    asked = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[asked])]
    )
    return world.ask(world.shard.commit_offsets, request, 9)


def commit_in_transaction(
    world: World, producer_id: int, offset: int, *, group: str = "g", topic: str = "t", partition: int = 0
) -> int:
    asked = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    request = TxnOffsetCommitRequest(
        transactional_id="id",
        group_id=group,
        producer_id=producer_id,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[asked])],
    )
    return world.ask(world.shard.commit_offsets_in_transaction, request)


def delete_offset(world: World, *, group: str = "g", partition: int = 0) -> int:
    topic = OffsetDeleteRequestTopic(
        name="t", partitions=[OffsetDeleteRequestPartition(partition_index=partition)]
    )
    return world.ask(world.shard.delete_offsets, OffsetDeleteRequest(group_id=group, topics=[topic]))


def code_of(world: World, ticket: int) -> int | None:
    """The code of the one partition that was asked about; None: not answered yet."""
    answer = world.answers.get(ticket)
    if answer is None:
        return None
    assert isinstance(answer, OffsetCommitResponse | TxnOffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


def fetched(
    world: World, *, stable: bool = False, group: str = "g", topic: str = "t", partition: int = 0
) -> int | str:
    asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    answer = world.shard.fetch_offsets(
        OffsetFetchRequestGroup(group_id=group, topics=[asked]), require_stable=stable
    )
    found = answer.topics[0].partitions[0]
    if found.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
        assert found.committed_offset == NOTHING
        return UNSTABLE
    assert found.error_code == 0
    return found.committed_offset


def flush_all(world: World) -> None:
    while world.in_flight is not None:
        world.flush()


# -- visible with the end --------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_become_visible_with_the_commit_or_go_with_the_abort(committed: bool) -> None:
    world = World({"t": 1})
    commit(world, 5)
    world.permitted.add(7)
    assert code_of(world, commit_in_transaction(world, 7, 9)) == 0
    assert (fetched(world), fetched(world, stable=True)) == (5, UNSTABLE)
    world.restart()
    assert (fetched(world), fetched(world, stable=True)) == (5, UNSTABLE)
    world.mark(7, committed=committed)
    expected = 9 if committed else 5
    assert (fetched(world), fetched(world, stable=True)) == (expected, expected)
    world.restart()
    assert (fetched(world), fetched(world, stable=True)) == (expected, expected)


def test_of_a_plain_commit_and_a_transaction_the_later_written_counts() -> None:
    world = World({"t": 1})
    world.permitted.add(7)
    commit_in_transaction(world, 7, 9)
    commit(world, 5)
    world.mark(7, committed=True)
    assert fetched(world) == 5
    world.restart()
    assert fetched(world) == 5
    world.compact()
    world.restart()
    assert fetched(world) == 5


def test_a_commit_on_its_way_is_unstable_before_it_is_durable() -> None:
    """Its sender was let in before it lost the partition. Were the old offset called stable, the next owner
    would begin there, and the sender could still commit what it did from there on."""
    world = World({"t": 1}, prompt=False)
    world.permitted.add(7)
    commit_in_transaction(world, 7, 9)
    assert (fetched(world), fetched(world, stable=True)) == (NOTHING, UNSTABLE)
    world.fail()
    assert fetched(world, stable=True) == NOTHING


# -- the log refuses --------------------------------------------------------------------------------------


def test_a_refused_commit_of_a_transaction_fails_alone() -> None:
    world = World({"t": 1}, prompt=False)
    refused = commit_in_transaction(world, 7, 9)
    behind = commit(world, 3, group="other")
    further = commit_in_transaction(world, 8, 4, group="third")
    world.permitted.add(8)
    world.flush()
    assert code_of(world, refused) == ErrorCode.INVALID_TXN_STATE
    flush_all(world)
    assert (code_of(world, behind), code_of(world, further)) == (0, 0)
    world.mark(8, committed=True)
    for _ in ("live", "loaded"):
        assert fetched(world, stable=True) == NOTHING
        assert fetched(world, group="other") == 3
        assert fetched(world, group="third") == 4
        world.restart()


def test_a_plain_batch_that_fails_takes_those_behind_it_along() -> None:
    world = World({"t": 1}, prompt=False)
    world.permitted.add(7)
    first = commit(world, 3)
    behind = commit_in_transaction(world, 7, 9)
    world.fail()
    assert code_of(world, first) == code_of(world, behind) == ErrorCode.NOT_COORDINATOR
    assert (world.in_flight, fetched(world, stable=True)) == (None, NOTHING)


def test_a_commit_that_comes_after_the_marker_is_no_part_of_the_next_transaction() -> None:
    """It waits behind a slow write while its transaction ends and the next one of the same epoch begins."""
    world = World({"t": 2}, prompt=False)
    world.permitted.add(7)
    commit(world, 1, group="slow")
    late = commit_in_transaction(world, 7, 9)
    world.mark(7, committed=False)
    assert code_of(world, late) == ErrorCode.INVALID_PRODUCER_EPOCH
    world.permitted.add(7)
    next_one = commit_in_transaction(world, 7, 2, partition=1)
    flush_all(world)
    assert code_of(world, next_one) == 0
    world.mark(7, committed=True)
    for _ in ("live", "loaded"):
        assert (fetched(world), fetched(world, partition=1)) == (NOTHING, 2)
        world.restart()


def test_a_commit_under_way_when_the_marker_came_first_is_refused_by_the_log() -> None:
    world = World({"t": 1}, prompt=False)
    world.permitted.add(7)
    late = commit_in_transaction(world, 7, 9)
    world.mark(7, committed=True)
    assert code_of(world, late) is None
    world.flush()
    assert code_of(world, late) == ErrorCode.INVALID_TXN_STATE
    assert fetched(world, stable=True) == NOTHING
    world.restart()
    assert fetched(world, stable=True) == NOTHING


class Told:
    """Who was told of which outcome, in order."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def append(self, journal: Journal[str], name: str, producer: Producer | None = None) -> None:
        journal.append([Record(name.encode(), b"")], *self.pair(name), producer)

    def pair(self, name: str) -> tuple[Durable, Failed]:
        return (
            lambda: self.outcomes.append(name + " durable"),
            lambda code: self.outcomes.append(f"{name} {code.name}"),
        )


def test_whoever_waits_for_what_came_before_a_refused_batch_is_told_of_that() -> None:
    journal, told = Journal[str](1000), Told()
    told.append(journal, "plain")
    assert journal.take() is not None
    told.append(journal, "transactional", Producer(7, 0))
    journal.then(*told.pair("reader"))
    for done, _ in journal.finish():
        done()
    assert journal.take() is not None
    for _, failed in journal.fail()[1]:
        failed(ErrorCode.INVALID_TXN_STATE)
    assert told.outcomes == ["plain durable", "transactional INVALID_TXN_STATE", "reader durable"]
    assert journal.is_idle


def test_whoever_waits_behind_a_batch_that_is_never_sent_waits_for_those_before() -> None:
    journal, told = Journal[str](1000), Told()
    told.append(journal, "plain")
    assert journal.take() is not None
    told.append(journal, "transactional", Producer(7, 0))
    journal.then(*told.pair("reader"))
    told.append(journal, "other", Producer(8, 0))
    for _, failed in journal.refuse(7):
        failed(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert told.outcomes == ["transactional INVALID_PRODUCER_EPOCH"]
    for _, failed in journal.fail()[1]:
        failed(ErrorCode.KAFKA_STORAGE_ERROR)
    assert told.outcomes[1:] == [
        "plain KAFKA_STORAGE_ERROR",
        "reader KAFKA_STORAGE_ERROR",
        "other KAFKA_STORAGE_ERROR",
    ]


# -- removal ----------------------------------------------------------------------------------------------


def test_a_group_may_exist_for_the_sake_of_an_open_transaction() -> None:
    world = World({"t": 1})
    world.permitted.add(7)
    commit_in_transaction(world, 7, 9)
    for _ in ("live", "loaded"):
        assert [group.group_id for group in world.shard.list_groups(set(), set())] == ["g"]
        world.restart()
    world.mark(7, committed=True)
    for _ in ("live", "loaded"):
        assert [group.group_id for group in world.shard.list_groups(set(), set())] == ["g"]
        assert fetched(world) == 9
        world.restart()


def test_deleting_a_group_takes_what_its_transactions_would_commit() -> None:
    world = World({"t": 1})
    world.permitted.add(7)
    commit_in_transaction(world, 7, 9)
    answer = world.asked(world.shard.delete_groups, ["g"])
    assert isinstance(answer, DeleteGroupsResponse) and answer.results[0].error_code == 0
    assert fetched(world, stable=True) == NOTHING
    world.mark(7, committed=True)
    for _ in ("live", "loaded"):
        assert fetched(world) == NOTHING
        assert world.shard.list_groups(set(), set()) == []
        world.restart()


def test_deleting_an_offset_takes_what_transactions_would_commit() -> None:
    world = World({"t": 2})
    world.permitted.add(7)
    commit_in_transaction(world, 7, 9)
    commit_in_transaction(world, 7, 8, partition=1)
    delete_offset(world)
    world.mark(7, committed=True)
    for _ in ("live", "loaded"):
        assert (fetched(world), fetched(world, partition=1)) == (NOTHING, 8)
        world.restart()


def test_offsets_of_open_transactions_outlive_their_time() -> None:
    settings = GroupSettings(offsets_retention_minutes=1, offsets_retention_check_interval_ms=MINUTE_MS)
    world = World({"t": 2}, settings=settings)
    world.permitted.add(7)
    commit(world, 1)
    commit_in_transaction(world, 7, 9)
    world.advance(10 * MINUTE_MS)
    assert fetched(world) == 1
    world.mark(7, committed=False)
    world.advance(2 * MINUTE_MS)
    assert fetched(world) == NOTHING
    assert world.shard.list_groups(set(), set()) == []


@pytest.mark.parametrize("committed", [True, False])
def test_what_a_transaction_would_commit_goes_with_its_topic(committed: bool) -> None:
    world = World({"t": 1, "other": 1})
    world.permitted.add(7)
    commit_in_transaction(world, 7, 9)
    world.set_topics({"other": 1})
    assert fetched(world, stable=True) == NOTHING
    world.set_topics({"t": 1, "other": 1}, {"t": 1})
    world.mark(7, committed=committed)
    for _ in ("live", "loaded"):
        assert fetched(world) == NOTHING
        world.restart()


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_of_the_topic_before_do_not_take_a_transaction_along(committed: bool) -> None:
    """The plain commit is durable only after its topic is gone. A transaction commits to the topic that has
    its name now, and then another topic goes."""
    world = World({"t": 1, "other": 1}, prompt=False)
    commit(world, 1)
    world.set_topics({"other": 1})
    flush_all(world)
    world.set_topics({"t": 1, "other": 1}, {"t": 1})
    world.permitted.add(7)
    commit_in_transaction(world, 7, 2)
    flush_all(world)
    world.set_topics({"t": 1}, {"t": 1})
    flush_all(world)
    assert fetched(world, stable=True) == UNSTABLE
    world.mark(7, committed=committed)
    flush_all(world)
    for _ in ("live", "loaded"):
        assert fetched(world) == (2 if committed else NOTHING)
        world.restart()


# -- whatever happens -------------------------------------------------------------------------------------

GROUPS = ("g", "h")
PARTITIONS = range(3)
PRODUCERS = (7, 8, 9)
Key = tuple[str, int]


class Known(NamedTuple):
    """What the log says of an offset."""

    visible: int
    pending: bool


def model(world: World) -> dict[Key, Known]:
    """Of the records after the last tombstone of a key the last one counts that is not part of a transaction
    that was aborted or is open."""
    ended = world.endings()
    known: dict[Key, Known] = {(group, p): Known(NOTHING, False) for group in GROUPS for p in PARTITIONS}
    for at, record in world.written():
        found = read_record(record.key, record.value)
        if found is None or not isinstance(found[0], OffsetCommitKey):
            continue
        key = found[0].group, found[0].partition
        if found[1] is None:
            known[key] = Known(NOTHING, False)
            continue
        assert isinstance(found[1], OffsetCommitValue)
        if record.producer_id < 0 or (at in ended and ended[at].committed):
            known[key] = known[key]._replace(visible=found[1].offset)
        elif at not in ended:
            known[key] = known[key]._replace(pending=True)
    return known


class History:
    """Clients that commit, with and without transactions, and a store that is slow or fails."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        settings = GroupSettings(
            offsets_retention_minutes=1,
            offsets_retention_check_interval_ms=MINUTE_MS,
            offsets_batch_bytes_max=self.chance.choice((1, 300, 100_000)),
        )
        self.world = World({"t": len(PARTITIONS), "other": 1}, settings=settings, prompt=False)
        self.next_offset = 0

    def step(self) -> None:
        world, chance = self.world, self.chance
        self.next_offset += 1
        group, partition = chance.choice(GROUPS), chance.choice(PARTITIONS)
        producer_id = chance.choice(PRODUCERS)
        match chance.choices(
            (
                "flush",
                "txn",
                "plain",
                "mark",
                "fail",
                "delete",
                "group",
                "time",
                "restart",
                "compact",
                "topic",
            ),
            (12, 10, 5, 4, 1, 1, 0.5, 1, 0.7, 0.7, 0.5),
        )[0]:
            case "flush" if world.in_flight is not None:
                world.flush()
            case "fail" if world.in_flight is not None:
                world.fail()
            case "plain":
                commit(world, self.next_offset, group=group, partition=partition)
            case "txn":
                if chance.random() < 0.9:
                    world.permitted.add(producer_id)
                commit_in_transaction(world, producer_id, self.next_offset, group=group, partition=partition)
            case "mark":
                world.mark(producer_id, committed=chance.random() < 0.6)
            case "delete":
                delete_offset(world, group=group, partition=partition)
            case "group":
                world.ask(world.shard.delete_groups, [group])
            case "time":
                world.advance(chance.choice((1000, MINUTE_MS, 3 * MINUTE_MS)))
            case "restart":
                world.restart()
            case "compact":
                world.compact()
            case "topic":
                world.set_topics(
                    {"t": len(PARTITIONS)} if len(world.image.topics) > 1 else {"t": 3, "other": 1}
                )

    def check(self) -> None:
        world = self.world
        for (group, partition), known in model(world).items():
            found = fetched(world, group=group, partition=partition)
            stable = fetched(world, group=group, partition=partition, stable=True)
            assert found == known.visible
            assert stable in (found, UNSTABLE)
            if known.pending:
                assert stable == UNSTABLE
            elif world.in_flight is None:
                assert stable == found

    def owners(self) -> Iterator[str]:
        """Groups that the log says something of."""
        for (group, _), known in model(self.world).items():
            if known.visible != NOTHING or known.pending:
                yield group


@pytest.mark.parametrize("seed", range(60))
def test_what_is_visible_is_what_the_log_says(seed: int) -> None:
    history = History(seed)
    for _ in range(150):
        history.step()
        history.check()
    flush_all(history.world)
    history.check()
    listed = {group.group_id for group in history.world.shard.list_groups(set(), set())}
    assert listed >= set(history.owners())
    history.world.restart()
    flush_all(history.world)
    history.check()
    listed = {group.group_id for group in history.world.shard.list_groups(set(), set())}
    assert listed == set(history.owners())


def test_a_history_has_all_kinds_of_records() -> None:
    """Else the comparison above would say little."""
    kinds: set[str] = set()
    for seed in range(10):
        history = History(seed)
        for _ in range(150):
            history.step()
        ended = history.world.endings()
        for at, entry in enumerate(history.world.log):
            if isinstance(entry, Written):
                kinds.add("tombstone" if entry.value is None else "commit")
                if entry.producer_id >= 0:
                    kinds.add(
                        "open" if at not in ended else "committed" if ended[at].committed else "aborted"
                    )
    assert kinds == {"tombstone", "commit", "open", "committed", "aborted"}
