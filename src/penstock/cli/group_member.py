"""A member of a group: a plain consumer of the classic protocol.

It joins and is given partitions (or gives them out by range, if it is asked to lead). It reads, commits the
offsets of records that were handed on, and leaves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.admin.offsets import NO_GENERATION, commit, committed, coordinator
from penstock.cli.client import AnswerError, Client, Connection
from penstock.wire.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.api.leave_group import LeaveGroupRequest, LeaveGroupResponse
from penstock.wire.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from penstock.wire.codec import decode_versioned, encode_versioned
from penstock.wire.errors import ErrorCode
from penstock.wire.schemas.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

SESSION_TIMEOUT_MS = 30_000
REBALANCE_TIMEOUT_MS = 60_000
HEARTBEAT_SECONDS = 3.0
COMMIT_SECONDS = 1.0
ONE_MEMBER = 2
"""The last version of LeaveGroup that names one member."""
_REJOIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)


class _Generation(NamedTuple):
    number: int
    partitions: list[int]


class GroupMember:
    """A member of a group that reads one topic."""

    def __init__(self, client: Client, group: str, topic: str) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._member = ""
        self._generation = _Generation(NO_GENERATION, [])
        self._positions: dict[int, int] = {}
        self._dirty = False
        self._heartbeat_at = 0.0
        self._commit_at = 0.0

    @property
    def partitions(self) -> list[int]:
        return self._generation.partitions

    def join(self) -> list[int]:
        """Join or join again; the partitions this member then has."""
        self._generation = self._client.retry(self._join)
        self._positions = {}
        self._heartbeat_at = self._commit_at = time.monotonic()
        return self.partitions

    def resume_at(self) -> dict[int, int]:
        """The committed offsets of the partitions this member has."""
        if not self.partitions:
            return {}
        found = committed(self._client, self._group, {self._topic: self.partitions})
        return {partition: offset for (_, partition), offset in found.items()}

    def handed_on(self, partition: int, offset: int) -> None:
        """The record at `offset` was handed on: what is committed next counts it."""
        self._positions[partition] = offset + 1
        self._dirty = True

    def reached(self, positions: Mapping[int, int]) -> None:
        """All records below these offsets were handed on. What lies between the last of them and the position
        is not for consumers, as markers of transactions are, and no lag either."""
        for partition, position in positions.items():
            if position > self._positions.get(partition, 0):
                self._positions[partition] = position
                self._dirty = True

    def stay(self) -> bool:
        """Heartbeat and commit when it is time; False if the group wants everybody to join again."""
        now = time.monotonic()
        if now - self._commit_at >= COMMIT_SECONDS:
            self._commit_at = now
            if not self.commit():
                return False
        if now - self._heartbeat_at < HEARTBEAT_SECONDS:
            return True
        self._heartbeat_at = now
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self._generation.number, member_id=self._member
        )
        code = self._client.retry(
            lambda: coordinator(self._client, self._group).ask(request, HeartbeatResponse).error_code
        )
        return self._still_in(code, "A heartbeat")

    def commit(self) -> bool:
        """Commit what was handed on; False if the group has moved on without this member."""
        if not self._dirty:
            return True
        offsets = {(self._topic, partition): at for partition, at in self._positions.items()}
        try:
            commit(
                self._client, self._group, offsets, generation=self._generation.number, member=self._member
            )
        except AnswerError as error:
            return self._still_in(error.code, "A commit")
        self._dirty = False
        return True

    def leave(self) -> None:
        self.commit()
        request = LeaveGroupRequest(group_id=self._group, member_id=self._member)
        coordinator(self._client, self._group).ask(request, LeaveGroupResponse, newest=ONE_MEMBER)

    def _still_in(self, code: int, what: str) -> bool:
        if code in _REJOIN:
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member = ""
            return False
        if code:
            raise AnswerError(code, f"{what} to group {self._group!r}")
        return True

    def _join(self) -> _Generation:
        broker = coordinator(self._client, self._group)
        subscription = encode_versioned(ConsumerProtocolSubscription(topics=[self._topic]), 0)
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                member_id=self._member,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
            )
            joined = broker.ask(request, JoinGroupResponse, seconds=REBALANCE_TIMEOUT_MS / 1000 + 10)
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member = joined.member_id
            elif joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member = ""
            elif joined.error_code:
                raise AnswerError(joined.error_code, f"Joining group {self._group!r}")
            else:
                self._member = joined.member_id
                found = self._sync(broker, joined)
                if found is not None:
                    return found

    def _sync(self, broker: Connection, joined: JoinGroupResponse) -> _Generation | None:
        """What this member is given; None if the group began again meanwhile."""
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self._member,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=list(self._assign(joined)) if leads else [],
        )
        answer = broker.ask(request, SyncGroupResponse, seconds=REBALANCE_TIMEOUT_MS / 1000 + 10)
        if not self._still_in(answer.error_code, "Joining"):
            return None
        given: list[int] = []
        if len(answer.assignment):
            found = decode_versioned(ConsumerProtocolAssignment, answer.assignment, newer_ok=True)
            for one in found.assigned_partitions:
                if one.topic == self._topic:
                    given += one.partitions
        return _Generation(joined.generation_id, sorted(given))

    def _assign(self, joined: JoinGroupResponse) -> Iterator[SyncGroupRequestAssignment]:
        """By range: of each topic, its readers in order of their ids get consecutive partitions."""
        readers: dict[str, list[str]] = {}
        for member in joined.members:
            subscribed = decode_versioned(ConsumerProtocolSubscription, member.metadata, newer_ok=True)
            for topic in subscribed.topics:
                readers.setdefault(topic, []).append(member.member_id)
        given: dict[str, list[TopicPartition]] = {member.member_id: [] for member in joined.members}
        for topic, members in readers.items():
            partitions = self._client.partitions(topic) if topic == self._topic else self._existing(topic)
            share, extra = divmod(len(partitions), len(members))
            at = 0
            for number, reader in enumerate(sorted(members)):
                count = share + (number < extra)
                if count:
                    given[reader].append(TopicPartition(topic=topic, partitions=partitions[at : at + count]))
                at += count
        for member_id, assigned in given.items():
            assignment = encode_versioned(ConsumerProtocolAssignment(assigned_partitions=assigned), 0)
            yield SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)

    def _existing(self, topic: str) -> list[int]:
        (found,) = self._client.metadata([topic]).topics
        return sorted(one.partition_index for one in found.partitions)
