"""Members of groups: after a commit, every client is told the committed offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from penstock.wire.errors import ErrorCode
from simulation.checker import Rising
from simulation.client import NO_LEADER, Client, Unreachable
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

COMMIT_VERSION = 8
COMMIT_BY_ID = 10
FETCH_VERSION = 7

ELSEWHERE = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
)


class Committer(Client):
    """Commits ever greater offsets for its group, without joining it, and looks at what is committed."""

    def __init__(self, scene: Scene, name: str, topic: Topic, every: float) -> None:
        super().__init__(scene, name)
        self.group = f"group-{name}"
        self._topic = topic
        self._every = every
        self._offset = 0
        self._told = Rising()
        self._cuts = 0
        self.commits = 0

    async def run(self) -> None:
        anew = False
        while not self.scene.ending:
            try:
                coordinator = await self.coordinator(self.group, anew=anew)
                if coordinator == NO_LEADER:
                    anew = True
                elif self.rng.random() < 0.7:
                    anew = not await self._commit(coordinator)
                else:
                    anew = await self.fetch(coordinator) is None
            except Unreachable:
                anew = True
            await self.pause(self._every)

    def _began_again(self) -> bool:
        """Whether the power was cut meanwhile: what was committed may be gone."""
        if self._cuts == self.scene.checker.cuts:
            return False
        self._cuts = self.scene.checker.cuts
        self._told = Rising()
        return True

    async def _commit(self, coordinator: int) -> bool:
        self._began_again()
        self._offset += 1
        offset = self._offset
        part = OffsetCommitRequestPartition(committed_offset=offset, committed_metadata=f"m{offset}")
        topic = OffsetCommitRequestTopic(self._topic.name, self._topic.id, [part])
        request = OffsetCommitRequest(group_id=self.group, topics=[topic])
        version = COMMIT_BY_ID if self._topic.by_id else COMMIT_VERSION
        self.note(f"commit {offset} to b{coordinator}")
        answer = await self.ask(coordinator, request, OffsetCommitResponse, version)
        codes = [part.error_code for topic in answer.topics for part in topic.partitions]
        if len(codes) != 1:
            self.scene.checker.fail("P5 whole", f"b{coordinator} answered a commit: {answer}")
        self.note(f"b{coordinator} said {self.code(codes[0])} to commit {offset}")
        if self._began_again():
            return False
        if codes[0] == 0:
            self.commits += 1
            self._told.told(self.scene.world.time(), offset)
            return True
        if codes[0] not in ELSEWHERE:
            self.scene.checker.fail("P3 commit", f"b{coordinator} answered {self.code(codes[0])} to a commit")
        return False

    async def fetch(self, coordinator: int) -> int | None:
        """What is committed; None if that was not told."""
        self._began_again()
        asked_at = self.scene.world.time()
        request = OffsetFetchRequest(
            group_id=self.group,
            topics=[OffsetFetchRequestTopic(name=self._topic.name, partition_indexes=[0])],
        )
        answer = await self.ask(coordinator, request, OffsetFetchResponse, FETCH_VERSION)
        if answer.error_code:
            if answer.error_code not in ELSEWHERE:
                code = self.code(answer.error_code)
                self.scene.checker.fail("P3 commit", f"b{coordinator} answered {code} to an OffsetFetch")
            return None
        parts = [part for topic in answer.topics for part in topic.partitions]
        if len(parts) != 1:
            self.scene.checker.fail("P5 whole", f"b{coordinator} answered an OffsetFetch: {answer}")
        if parts[0].error_code or self._began_again():
            return None
        self._check(parts[0].committed_offset, parts[0].metadata or "", asked_at, coordinator)
        return parts[0].committed_offset

    def _check(self, found: int, metadata: str, asked_at: float, by: int) -> None:
        known = self._told.known_before(asked_at)
        told = f"b{by}, asked at {asked_at:.4f} by {self.group}, told of commit {found} {metadata!r}"
        if max(found, 0) < known:
            self.scene.checker.fail("P3 commit", f"{told}; {known} had been acknowledged")
        if found > self._offset or (found > 0 and metadata != f"m{found}"):
            self.scene.checker.fail("P3 commit", f"{told}, which was not sent")
        self._told.told(self.scene.world.time(), max(found, 0))
