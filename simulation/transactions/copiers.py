"""Clients that consume, transform and produce: each input is to have its effect once.

A copier reads a partition at read_committed from where its group is, writes a copy of each record elsewhere,
and commits the group's offset in the same transaction. A copier that begins anew asks for the stable offset.
Copiers that share an id are one after the other the copier of a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.histories.history import Transaction

from penstock.wire.api.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from penstock.wire.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.errors import ErrorCode
from simulation.client import NO_LEADER, Unreachable
from simulation.producers import RETRY_SECONDS
from simulation.topics import Topic
from simulation.transactions.notes import place_of
from simulation.transactions.readers import IsolatedReader
from simulation.transactions.session import PATIENCE_SECONDS, Abortable, Fatal, Id, Session

if TYPE_CHECKING:
    from simulation.scene import Scene

ADD_OFFSETS_VERSION = 3
OFFSET_VERSIONS = {1: (3, 4), 2: (5,)}
FETCH_VERSION = 7
COPIES_MAX = 4
"""Records of one transaction."""

AGAIN = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


class Copier(Session):
    def __init__(
        self, scene: Scene, name: str, id: Id, source: tuple[Topic, int], target: Topic, every: float
    ) -> None:
        super().__init__(scene, name, id)
        self.group = f"group-{id.name}"
        self.source = source
        self.target = target
        self._every = every
        self._input = IsolatedReader(scene, f"{name}-in", *source, committed=True)
        self._at = 0
        """Up to where its group has consumed."""
        self.commits = 0

    async def run(self) -> None:
        if self.id.shared:
            await self.pause(2.0)
        while True:
            try:
                await self.initialise()
                while not self.scene.ending:
                    await self._one()
                    await self.pause(self._every)
                return
            except Fatal as error:
                self.note(f"begins anew after {error}")
                await self.pause(1.0)

    async def initialise(self, *, go_on: bool = False) -> None:
        """Another copier may have had the id meanwhile, and gone on from where this one was."""
        await super().initialise()
        self._at = max(0, await self.stable_offset())
        self._input.go_to(self._at)

    async def _one(self) -> None:
        """The copies of the next records, in one transaction."""
        await self._input.step()
        found = sorted(offset for offset in self._input.records if offset >= self._at)[:COPIES_MAX]
        if not found:
            return
        end = found[-1] + 1
        transaction = self.scene.transactions.notes.begun(self.name)
        transaction.read = [self._input.records[offset].decode() for offset in found]
        commit = self.rng.random() < 0.85
        try:
            await self._copy(transaction, found, end)
            await self.end(transaction, commit=commit)
        except Abortable as error:
            self.note(f"aborts {transaction.name}: {error}")
            await self.abort(transaction)
            commit = False
        if commit:
            self._at = end
            self.commits += 1
        if self.unsure and self.id.version == 1:
            await self.initialise()
        self._input.go_to(self._at)

    async def _copy(self, transaction: Transaction, found: list[int], end: int) -> None:
        notes = self.scene.transactions.notes
        topic, partition = self.source
        place = place_of(topic, partition)
        targets = [self.rng.randrange(self.target.partitions) for _ in found]
        if self.id.version == 1:
            await self.add([(self.target, index) for index in sorted(set(targets))])
        for offset, index in zip(found, targets, strict=True):
            batch = self.next_batch(self.target, index, 1)
            notes.sources[batch.values[0].decode()] = (place, offset)
            await self.send(transaction, self.target, index, batch)
        notes.moved(transaction, self.group, topic, partition, self._at, end)
        if self.id.version == 1:
            await self._add_offsets()
        await self._commit_offset(end)

    async def _add_offsets(self) -> None:
        request = AddOffsetsToTxnRequest(self.id.name, self.producer_id, self.epoch, self.group)

        async def ask(coordinator: int) -> int:
            answer = await self.ask(
                coordinator, request, AddOffsetsToTxnResponse, ADD_OFFSETS_VERSION, PATIENCE_SECONDS
            )
            return answer.error_code

        await self.until_answered("AddOffsetsToTxn", ask)

    async def _commit_offset(self, offset: int) -> None:
        """Tell the group's coordinator, as part of the transaction."""
        topic, partition = self.source
        part = TxnOffsetCommitRequestPartition(partition, offset, -1, f"m{offset}")
        request = TxnOffsetCommitRequest(
            transactional_id=self.id.name,
            group_id=self.group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(topic.name, [part])],
        )
        version = self.rng.choice(OFFSET_VERSIONS[self.id.version])
        anew = False
        while True:
            try:
                coordinator = await self.coordinator(self.group, anew=anew)
                anew = True
                if coordinator != NO_LEADER:
                    self.note(f"offset {offset} of {place_of(topic, partition)} to b{coordinator}")
                    answer = await self.ask(
                        coordinator, request, TxnOffsetCommitResponse, version, PATIENCE_SECONDS
                    )
                    codes = [one.error_code for told in answer.topics for one in told.partitions]
                    if len(codes) != 1:
                        self.scene.checker.fail("P5 whole", f"b{coordinator} answered an offset: {answer}")
                    self.note(f"b{coordinator} said {self.code(codes[0])} to offset {offset}")
                    if codes[0] not in AGAIN:
                        self.judge(codes[0], "TxnOffsetCommit", coordinator)
                        return
            except Unreachable:
                self.unsure = anew = True
            await self.pause(RETRY_SECONDS)

    async def stable_offset(self) -> int:
        """Where the group is, without what a transaction may still change."""
        topic, partition = self.source
        request = OffsetFetchRequest(
            group_id=self.group,
            topics=[OffsetFetchRequestTopic(topic.name, [partition])],
            require_stable=True,
        )
        anew = False
        while True:
            asked_at = self.scene.world.time()
            try:
                coordinator = await self.coordinator(self.group, anew=anew)
                anew = True
                if coordinator != NO_LEADER:
                    answer = await self.ask(
                        coordinator, request, OffsetFetchResponse, FETCH_VERSION, PATIENCE_SECONDS
                    )
                    parts = [one for told in answer.topics for one in told.partitions]
                    code = answer.error_code or (parts[0].error_code if parts else 0)
                    if not code and len(parts) == 1:
                        offset = parts[0].committed_offset
                        self.note(f"b{coordinator} said that {self.group} is at {offset}")
                        self.scene.transactions.notes.offset_told(
                            self.group, topic, partition, offset, asked_at
                        )
                        return offset
                    anew = code != UNSTABLE
                    if code not in AGAIN | {UNSTABLE}:
                        self.scene.checker.fail("P3 commit", f"b{coordinator} told of {self.group}: {answer}")
            except Unreachable:
                anew = True
            await self.pause(RETRY_SECONDS)
