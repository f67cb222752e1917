"""Consumers that follow the protocol and believe only what they are told, against one shard.

Each consumer keeps what it works on in `owned`. The simulation holds the coordinator to one promise above
all: no two consumers ever work on the same partition. A consumer that has not been heard of for a session
may have been replaced without knowing it; it stops by itself when its session has passed, as real ones do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from penstock.groups.classic.embedded import read_assignment, write_assignment
from penstock.wire.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.wire.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.api.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.api.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from penstock.wire.api.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from penstock.wire.errors import ErrorCode
from tests.groups.transcript import subscription
from tests.groups.world import World, client, topic_id

SESSION_MS = 10_000
REBALANCE_MS = 30_000
Partition = tuple[str, int]


class Consumer(ABC):
    """What both protocols have in common."""

    def __init__(self, world: World, name: str, topics: list[str]) -> None:
        self.world = world
        self.name = name
        self.topics = topics
        self.owned: set[Partition] = set()
        self.alive = True
        self.sent_ms = world.ms
        self.heard_ms = world.ms
        """When the last request that was answered well was sent: the coordinator counts from later."""
        self.ticket: int | None = None

    def check_session(self) -> None:
        """Nothing heard for a session: others may have its partitions by now."""
        if self.world.ms - self.heard_ms >= SESSION_MS:
            self.lose_everything()

    def lose_everything(self) -> None:
        self.owned = set()

    def step(self) -> None:
        """Take the answer, if there is one; ask, if nothing is asked."""
        response = self.answer()
        if response is not None:
            self.take(response)
        elif self.ticket is None:
            self.sent_ms = self.world.ms
            self.ask()
        self.check_session()

    @abstractmethod
    def ask(self) -> None: ...

    @abstractmethod
    def take(self, response: Any) -> None: ...

    def answer(self) -> Any | None:
        if self.ticket is None or self.ticket not in self.world.answers:
            return None
        response = self.world.answers.pop(self.ticket)
        self.ticket = None
        return response

    def die(self) -> None:
        self.alive = False
        self.owned = set()
        if self.ticket is not None:
            self.world.answers.pop(self.ticket, None)

    def forget_request(self) -> None:
        """The broker died: the connection is gone, and with it the answer."""
        self.ticket = None


class ClassicConsumer(Consumer):
    """Eager: it stops all work before it joins."""

    def __init__(self, world: World, name: str, topics: list[str]) -> None:
        super().__init__(world, name, topics)
        self.member_id = ""
        self.generation = -1
        self.stage = "join"
        self.members: list[tuple[str, list[str]]] = []

    def ask(self) -> None:
        shard = self.world.shard
        if self.stage == "join":
            self.owned = set()
            request = JoinGroupRequest(
                group_id="g",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[
                    JoinGroupRequestProtocol(name="range", metadata=subscription(",".join(self.topics)))
                ],
            )
            self.ticket = self.world.ask(shard.join_group, request, 9, client(self.name))
        elif self.stage == "sync":
            request_ = SyncGroupRequest(
                group_id="g",
                generation_id=self.generation,
                member_id=self.member_id,
                assignments=self.assignments(),
            )
            self.ticket = self.world.ask(shard.sync_group, request_)
        else:
            beat = HeartbeatRequest(group_id="g", generation_id=self.generation, member_id=self.member_id)
            self.ticket = self.world.ask(shard.heartbeat, beat)

    def assignments(self) -> list[SyncGroupRequestAssignment]:
        """As a leader: round robin."""
        given: dict[str, dict[str, list[int]]] = {member_id: {} for member_id, _ in self.members}
        for name, topic in self.world.image.topics.items():
            takers = [member_id for member_id, topics in self.members if name in topics]
            for at in range(len(topic.partitions) if takers else 0):
                given[takers[at % len(takers)]].setdefault(name, []).append(at)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=write_assignment(partitions, 1))
            for member_id, partitions in given.items()
        ]

    def take(self, response: Any) -> None:
        code = ErrorCode(response.error_code)
        if isinstance(response, JoinGroupResponse):
            self.take_join(code, response)
        elif code is ErrorCode.NONE:
            self.heard_ms = self.sent_ms
            if isinstance(response, SyncGroupResponse):
                found = read_assignment(bytes(response.assignment))
                self.owned = {(topic, p) for topic, partitions in found.items() for p in partitions}
            self.stage = "work"
        else:
            if isinstance(response, HeartbeatResponse) and code is ErrorCode.REBALANCE_IN_PROGRESS:
                self.heard_ms = self.sent_ms
            if code is not ErrorCode.REBALANCE_IN_PROGRESS:
                self.owned = set()
            if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
                self.member_id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else self.member_id
            self.stage = "join"

    def take_join(self, code: ErrorCode, response: JoinGroupResponse) -> None:
        if code is ErrorCode.NONE:
            self.member_id = response.member_id
            self.generation = response.generation_id
            self.members = [(m.member_id, self.topics) for m in response.members]
            self.stage = "sync"
        elif code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def leave(self) -> None:
        identity = MemberIdentity(member_id=self.member_id)
        self.die()
        if self.member_id:
            request = LeaveGroupRequest(group_id="g", members=[identity])
            self.world.ask(self.world.shard.leave_group, request)

    def commit_identity(self) -> tuple[int, str]:
        return self.generation, self.member_id


class ModernConsumer(Consumer):
    """It lets go of what it no longer has, and says so at its next heartbeat."""

    def __init__(self, world: World, name: str, topics: list[str]) -> None:
        super().__init__(world, name, topics)
        self.epoch = 0
        self.sends_all = True
        """After an answer that was bad or lost, everything is said again."""

    def lose_everything(self) -> None:
        super().lose_everything()
        self.epoch = 0

    def forget_request(self) -> None:
        super().forget_request()
        self.sends_all = True

    def ask(self) -> None:
        everything = self.epoch == 0 or self.sends_all
        if self.epoch == 0:
            self.owned = set()
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=self.name,
            member_epoch=self.epoch,
            rebalance_timeout_ms=REBALANCE_MS if everything else -1,
            subscribed_topic_names=self.topics if everything else None,
            topic_partitions=[
                TopicPartitions(topic_id=topic_id(topic), partitions=indexes)
                for topic, indexes in _grouped(self.owned)
            ],
        )
        shard = self.world.shard
        self.ticket = self.world.ask(shard.consumer_group_heartbeat, request, 1, client(self.name))

    def take(self, response: ConsumerGroupHeartbeatResponse) -> None:
        code = ErrorCode(response.error_code)
        self.sends_all = code is not ErrorCode.NONE
        if code is ErrorCode.NONE:
            self.heard_ms = self.sent_ms
            self.epoch = response.member_epoch
            if response.assignment is not None:
                names = self.world.image.names
                self.owned = {
                    (names[tp.topic_id], p)
                    for tp in response.assignment.topic_partitions
                    for p in tp.partitions
                    if tp.topic_id in names
                }
        elif code in (
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ):
            self.owned = set()
            self.epoch = 0

    def leave(self) -> None:
        self.die()
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=self.name, member_epoch=-1)
        self.world.ask(self.world.shard.consumer_group_heartbeat, request, 1, client(self.name))

    def commit_identity(self) -> tuple[int, str]:
        return self.epoch, self.name


def _grouped(owned: set[Partition]) -> Iterator[tuple[str, list[int]]]:
    for topic in sorted({topic for topic, _ in owned}):
        yield topic, sorted(p for t, p in owned if t == topic)


class Committer:
    """Commits ever larger offsets for what a consumer owns, and remembers what was acknowledged."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.next = 0
        self.acknowledged: dict[Partition, int] = {}
        self.waiting: dict[int, dict[Partition, int]] = {}

    def commit(self, consumer: ClassicConsumer | ModernConsumer) -> None:
        self.next += 1
        asked = dict.fromkeys(consumer.owned, self.next)
        if not asked:
            return
        generation, member_id = consumer.commit_identity()
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=p, committed_offset=self.next)
                        for p in indexes
                    ],
                )
                for topic, indexes in _grouped(set(asked))
            ],
        )
        self.waiting[self.world.ask(self.world.shard.commit_offsets, request, 9)] = asked

    def collect(self) -> None:
        for ticket in [t for t in self.waiting if t in self.world.answers]:
            response = self.world.answers.pop(ticket)
            assert isinstance(response, OffsetCommitResponse)
            asked = self.waiting.pop(ticket)
            codes = {(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
            assert codes.keys() == asked.keys(), "every partition asked for is answered"
            for partition, offset in asked.items():
                if codes[partition] == ErrorCode.NONE:
                    known = self.acknowledged.get(partition, -1)
                    self.acknowledged[partition] = max(known, offset)

    def check(self) -> None:
        """What was acknowledged is there, or something newer is."""
        asked = [OffsetFetchRequestTopics(name="t", partition_indexes=list(range(6)))]
        answer = self.world.shard.fetch_offsets(
            OffsetFetchRequestGroup(group_id="g", topics=asked), require_stable=True
        )
        found = {p.partition_index: p.committed_offset for t in answer.topics for p in t.partitions}
        assert answer.error_code == 0
        assert found.keys() == set(range(6))
        for (topic, index), offset in self.acknowledged.items():
            assert topic == "t"
            assert found[index] >= offset, "a committed offset went back"
