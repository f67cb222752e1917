"""Reads and replays transcripts: what members send, and what the coordinator says and writes.

A transcript is a text file of blocks. A block is one or more commands, a line of four dashes, and everything
that then happens, one line each:

    join a group=g v=4
    ----
    a <- MEMBER_ID_REQUIRED member=a-1

Commands: `join`, `sync`, `heartbeat`, `leave`, `beat` (ConsumerGroupHeartbeat), `commit`, `fetch`, `delete`,
`groups`, `describe`, `advance MS`, `flush`, `fail CODE`, `topics NAME:COUNT ...`, `settings NAME=VALUE ...`,
`restart`. The first word after a request is who sends it; that name stands in front of the answer.
`PENSTOCK_REWRITE=1` writes the file anew with what happens now, to be read in the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.groups.classic.embedded import read_assignment, write_assignment
from penstock.groups.describe import words as words_of
from penstock.groups.records import read_record
from penstock.settings.groups import GroupSettings
from penstock.wire.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from penstock.wire.api.heartbeat import HeartbeatRequest
from penstock.wire.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.api.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.api.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from penstock.wire.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.wire.codec import encode
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ApiMessage
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolSubscription, TopicPartition
from tests.groups.world import World, client, topic_id

Words = dict[str, str]


def subscription(topics: str, owned: str = "", version: int = 1) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=topics.split(",") if topics else [],
        owned_partitions=[
            TopicPartition(topic=name, partitions=indexes) for name, indexes in _partitions(owned).items()
        ],
    )
    return version.to_bytes(2, "big") + encode(message, version)


def _partitions(text: str) -> dict[str, list[int]]:
    """t:0,1;u:2 -> {"t": [0, 1], "u": [2]}"""
    found: dict[str, list[int]] = {}
    for part in filter(None, text.split(";")):
        name, _, indexes = part.partition(":")
        found[name] = [int(index) for index in indexes.split(",")]
    return found


def _show_partitions(found: dict[str, list[int]]) -> str:
    return ";".join(f"{t}:{','.join(map(str, p))}" for t, p in sorted(found.items())) or "-"


class Transcript:
    def __init__(self) -> None:
        self.settings = GroupSettings(group_consumer_assignment_interval_ms=0)
        self.world: World | None = None
        self.topics: dict[str, int] = {"t": 4}
        self.waiting: dict[int, str] = {}
        self.lines: list[str] = []
        self.seen = 0

    # Running

    def run(self, commands: list[str]) -> list[str]:
        self.lines = []
        for command in commands:
            name, *words = command.split()
            getattr(self, "do_" + name)(*words)
            self._collect()
        return self.lines

    @property
    def w(self) -> World:
        if self.world is None:
            self.world = World(self.topics, settings=self.settings, prompt=False)
        return self.world

    def _send(self, who: str, event: Callable[..., Any], *arguments: object) -> None:
        ticket = self.w.ask(event, *arguments)
        self.waiting[ticket] = who

    def _collect(self) -> None:
        world = self.world
        if world is None:
            return
        for ticket, response in list(world.answers.items()):
            del world.answers[ticket]
            self.lines.append(f"{self.waiting.pop(ticket)} <- {self._show(response)}")
        if world.batches > self.seen and world.in_flight is not None:
            self.seen = world.batches
            for record in world.in_flight.records:
                self.lines.append("write " + _show_record(record.key, record.value))

    # Commands

    def do_settings(self, *words: str) -> None:
        values = {name: int(v) if v.isdigit() else v for name, v in (w.split("=") for w in words)}
        self.settings = msgspec.structs.replace(self.settings, **values)
        assert self.world is None, "settings come first"

    def do_topics(self, *words: str) -> None:
        self.topics = {name: int(count) for name, count in (w.split(":") for w in words)}
        if self.world is not None:
            self.world.set_topics(self.topics)

    def do_advance(self, ms: str) -> None:
        self.w.advance(int(ms))

    def do_flush(self) -> None:
        if self.w.in_flight is None:
            self.lines.append("nothing to write")
        else:
            self.w.flush()

    def do_fail(self, code: str = "KAFKA_STORAGE_ERROR") -> None:
        self.w.fail(ErrorCode[code])

    def do_restart(self) -> None:
        self.waiting.clear()
        self.w.restart()

    def do_join(self, who: str, *words: str) -> None:
        o = _options(words)
        offered = o.get("protocols", "range").split(",")
        data = subscription(o.get("topics", "t"), o.get("owned", ""))
        request = JoinGroupRequest(
            group_id=o.get("group", "g"),
            session_timeout_ms=int(o.get("session", "10000")),
            rebalance_timeout_ms=int(o.get("rebalance", "60000")),
            member_id=o.get("member", ""),
            group_instance_id=o.get("instance"),
            protocol_type=o.get("type", "consumer"),
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name in offered],
        )
        self._send(who, self.w.shard.join_group, request, int(o.get("v", "9")), client(who))

    def do_sync(self, who: str, *words: str) -> None:
        o = _options(words)
        request = SyncGroupRequest(
            group_id=o.get("group", "g"),
            generation_id=int(o["gen"]),
            member_id=o["member"],
            group_instance_id=o.get("instance"),
            protocol_type=o.get("type"),
            protocol_name=o.get("protocol"),
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=member, assignment=write_assignment(_partitions(given), 1)
                )
                for member, _, given in (a.partition("/") for a in filter(None, o.get("give", "").split("+")))
            ],
        )
        self._send(who, self.w.shard.sync_group, request)

    def do_heartbeat(self, who: str, *words: str) -> None:
        o = _options(words)
        request = HeartbeatRequest(
            group_id=o.get("group", "g"),
            generation_id=int(o["gen"]),
            member_id=o["member"],
            group_instance_id=o.get("instance"),
        )
        self._send(who, self.w.shard.heartbeat, request)

    def do_leave(self, who: str, *words: str) -> None:
        o = _options(words)
        members = [
            MemberIdentity(member_id=member, group_instance_id=instance or None)
            for member, _, instance in (m.partition("/") for m in o["members"].split(","))
        ]
        request = LeaveGroupRequest(group_id=o.get("group", "g"), members=members)
        self._send(who, self.w.shard.leave_group, request)

    def do_beat(self, who: str, *words: str) -> None:
        o = _options(words)
        epoch = int(o["epoch"])
        joins = epoch == 0
        owned = o.get("owned", "" if joins else None)
        names = o.get("topics", "t" if joins and "regex" not in o else None)
        request = ConsumerGroupHeartbeatRequest(
            group_id=o.get("group", "g"),
            member_id=o.get("member", who),
            member_epoch=epoch,
            instance_id=o.get("instance"),
            rebalance_timeout_ms=int(o.get("rebalance", "60000" if joins else "-1")),
            subscribed_topic_names=None if names is None else [n for n in names.split(",") if n],
            subscribed_topic_regex=o.get("regex"),
            server_assignor=o.get("assignor"),
            topic_partitions=None
            if owned is None
            else [TopicPartitions(topic_id=topic_id(n), partitions=p) for n, p in _partitions(owned).items()],
        )
        self._send(who, self.w.shard.consumer_group_heartbeat, request, 1, client(who))

    def do_commit(self, who: str, *words: str) -> None:
        o = _options(words)
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=int(index),
                        committed_offset=int(offset),
                        committed_metadata=o.get("metadata", ""),
                    )
                    for index, offset in (p.split("@") for p in found.split(","))
                ],
            )
            for name, _, found in (t.partition(":") for t in o["at"].split(";"))
        ]
        request = OffsetCommitRequest(
            group_id=o.get("group", "g"),
            generation_id_or_member_epoch=int(o.get("gen", "-1")),
            member_id=o.get("member", ""),
            group_instance_id=o.get("instance"),
            retention_time_ms=int(o.get("retention", "-1")),
            topics=topics,
        )
        self._send(who, self.w.shard.commit_offsets, request, int(o.get("v", "9")))

    def do_fetch(self, who: str, *words: str) -> None:
        o = _options(words)
        asked = _partitions(o.get("at", "t:0,1,2,3"))
        request = OffsetFetchRequestGroup(
            group_id=o.get("group", "g"),
            member_id=o.get("member"),
            member_epoch=int(o.get("epoch", "-1")),
            topics=None
            if "all" in o
            else [OffsetFetchRequestTopics(name=n, partition_indexes=p) for n, p in asked.items()],
        )
        answer = self.w.shard.fetch_offsets(request, require_stable=False)
        shown = " ".join(
            f"{t.name}:{p.partition_index}@{p.committed_offset}"
            + (f"({ErrorCode(p.error_code).name})" if p.error_code else "")
            for t in answer.topics
            for p in t.partitions
        )
        self.lines.append(f"{who} <- {_code(answer)} {shown}".rstrip())

    def do_delete(self, who: str, *words: str) -> None:
        self._send(who, self.w.shard.delete_groups, list(words))

    def do_groups(self, *words: str) -> None:
        o = _options(words)
        found = self.w.shard.list_groups(
            words_of(o["state"].split(",") if "state" in o else ()),
            words_of(o["type"].split(",") if "type" in o else ()),
        )
        for g in found:
            self.lines.append(f"{g.group_id} {g.group_type} {g.group_state} type={g.protocol_type or '-'}")

    def do_describe(self, group: str = "g") -> None:
        shard = self.w.shard
        consumer = shard.describe_consumer_group(group)
        if consumer.error_code == 0:
            self.lines.append(
                f"{group} {consumer.group_state} epoch={consumer.group_epoch}"
                f" target={consumer.assignment_epoch} assignor={consumer.assignor_name}"
            )
            for m in consumer.members:
                has = {t.topic_name: list(t.partitions) for t in m.assignment.topic_partitions}
                wants = {t.topic_name: list(t.partitions) for t in m.target_assignment.topic_partitions}
                self.lines.append(
                    f"  {m.member_id} epoch={m.member_epoch} has={_show_partitions(has)}"
                    f" target={_show_partitions(wants)}" + (" classic" if m.member_type == 0 else "")
                )
            return
        classic = shard.describe_group(group, 6)
        self.lines.append(
            f"{group} {classic.group_state} protocol={classic.protocol_data or '-'}"
            + (f" {ErrorCode(classic.error_code).name}" if classic.error_code else "")
        )
        for member in classic.members:
            given = _show_partitions(read_assignment(bytes(member.member_assignment)))
            self.lines.append(f"  {member.member_id} assignment={given}")

    # Showing

    def _show(self, response: ApiMessage) -> str:
        shown = getattr(self, "_show_" + type(response).__name__)(response)
        return " ".join(filter(None, (_code(response), shown)))

    def _show_JoinGroupResponse(self, r: Any) -> str:
        if r.error_code:
            return f"member={r.member_id}" if r.member_id else ""
        members = f" members={','.join(m.member_id for m in r.members)}" if r.members else ""
        skip = " skip_assignment" if r.skip_assignment else ""
        leader = f" leader={r.leader}" if r.leader else ""
        return f"gen={r.generation_id} member={r.member_id}{leader} protocol={r.protocol_name}{members}{skip}"

    def _show_SyncGroupResponse(self, r: Any) -> str:
        return "" if r.error_code else f"assignment={_show_partitions(read_assignment(bytes(r.assignment)))}"

    def _show_HeartbeatResponse(self, r: Any) -> str:
        return ""

    def _show_LeaveGroupResponse(self, r: Any) -> str:
        return " ".join(
            f"{m.member_id or m.group_instance_id}:{ErrorCode(m.error_code).name}" for m in r.members
        )

    def _show_ConsumerGroupHeartbeatResponse(self, r: Any) -> str:
        if r.error_code:
            return ""
        soon = f" again_in={r.heartbeat_interval_ms}" if 0 < r.heartbeat_interval_ms < 5000 else ""
        if r.assignment is None:
            return f"epoch={r.member_epoch}{soon}"
        names = self.w.image.names
        given = {names[tp.topic_id]: list(tp.partitions) for tp in r.assignment.topic_partitions}
        return f"epoch={r.member_epoch} assignment={_show_partitions(given)}{soon}"

    def _show_OffsetCommitResponse(self, r: Any) -> str:
        return " ".join(
            f"{t.name}:{p.partition_index}={ErrorCode(p.error_code).name}"
            for t in r.topics
            for p in t.partitions
        )

    def _show_DeleteGroupsResponse(self, r: Any) -> str:
        return " ".join(f"{g.group_id}={ErrorCode(g.error_code).name}" for g in r.results)


def _code(response: Any) -> str:
    code = getattr(response, "error_code", None)
    return "" if code is None else ErrorCode(code).name


def _options(words: tuple[str, ...]) -> Words:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _show_record(key: bytes, value: bytes | None) -> str:
    found = read_record(key, value)
    assert found is not None
    typed_key, typed_value = found
    fields = msgspec.structs.asdict(typed_key)
    name = type(typed_key).__name__.removesuffix("Key")
    identity = "/".join(str(v) for v in fields.values())
    if typed_value is None:
        return f"{name} {identity} tombstone"
    shown = {
        "OffsetCommit": lambda v: f"@{v.offset}",
        "GroupMetadata": lambda v: (
            f"gen={v.generation} protocol={v.protocol} leader={v.leader}"
            f" members={','.join(m.member_id for m in v.members)}"
        ),
        "ConsumerGroupMetadata": lambda v: f"epoch={v.epoch}",
        "ConsumerGroupMemberMetadata": lambda v: (
            f"topics={','.join(v.subscribed_topic_names)}"
            + (f" regex={v.subscribed_topic_regex}" if v.subscribed_topic_regex else "")
            + (" classic" if v.classic_member_metadata else "")
        ),
        "ConsumerGroupTargetAssignmentMetadata": lambda v: f"epoch={v.assignment_epoch}",
        "ConsumerGroupTargetAssignmentMember": lambda v: _show_ids(v.topic_partitions),
        "ConsumerGroupCurrentMemberAssignment": lambda v: (
            f"epoch={v.member_epoch} {('stable', 'revoking', 'waiting')[v.state]}"
            f" has={_show_ids(v.assigned_partitions)} revokes={_show_ids(v.partitions_pending_revocation)}"
        ),
        "ConsumerGroupRegularExpression": lambda v: f"topics={','.join(v.topics)}",
    }[name](typed_value)
    return f"{name} {identity} {shown}"


def _show_ids(found: list[Any]) -> str:
    return _show_partitions(
        {tp.topic_id.lstrip(b"\0").decode(): list(tp.partitions) for tp in found if tp.partitions}
    )


def check_transcript(path: Path) -> None:
    text = path.read_text()
    transcript = Transcript()
    out: list[str] = []
    for block in text.split("\n\n"):
        comments = [line for line in block.splitlines() if line.startswith("#")]
        body = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not body:
            out.append("\n".join(comments))
            continue
        commands = body[: body.index("----")] if "----" in body else body
        expected = body[len(commands) + 1 :]
        happened = transcript.run(commands)
        out.append("\n".join([*comments, *commands, "----", *happened]))
        if "PENSTOCK_REWRITE" not in os.environ:
            assert happened == expected, "\n".join([*comments, *commands])
    if "PENSTOCK_REWRITE" in os.environ:
        path.write_text("\n\n".join(out).rstrip() + "\n")
