"""Classic requests from members of a consumer group: the way between the two protocols.

To such a member, JoinGroup is a heartbeat that may move it on, and SyncGroup fetches its present assignment.
REBALANCE_IN_PROGRESS in answer to Heartbeat tells it that there is something to fetch: a newer assignment. A
group that only waits for one would have it come again and again until there is one. The coordinator has
assigned, so no member is told to lead.
"""

import msgspec

from penstock.groups.classic.embedded import (
    CONSUMER_PROTOCOL_TYPE,
    embedded_version,
    read_subscription,
    write_assignment,
)
from penstock.groups.classic.joining import UNKNOWN_MEMBER, Join, join_refused
from penstock.groups.consumer.draft import Draft
from penstock.groups.consumer.group import NO_TARGET, ClassicSide, ConsumerGroup, Member, MemberState
from penstock.groups.consumer.heartbeat import ConsumerHeartbeat, check_instance
from penstock.groups.core import Context, GroupError
from penstock.groups.migration import Migration, by_id, named
from penstock.shards.shard import Ticket, error_after_append
from penstock.wire.api.consumer_group_heartbeat import TopicPartitions
from penstock.wire.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.api.join_group import JoinGroupResponse
from penstock.wire.api.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from penstock.wire.api.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.schemas.consumer_protocol import ConsumerProtocolSubscription


class MixedGroup:
    __slots__ = ("_c", "_heartbeat", "_migration")

    def __init__(self, context: Context, heartbeat: ConsumerHeartbeat, migration: Migration) -> None:
        self._c = context
        self._heartbeat = heartbeat
        self._migration = migration

    def join(self, group: ConsumerGroup, join: Join) -> None:
        request = join.request
        c = self._c
        unknown = request.member_id == UNKNOWN_MEMBER
        member_id = c.new_id() if unknown else request.member_id
        if member_id not in group.members and len(group.members) >= c.settings.group_consumer_max_size:
            return c.answer(join.ticket, join_refused(ErrorCode.GROUP_MAX_SIZE_REACHED))
        subscription = _subscription(join)
        if subscription is None or not group.supports_classic(request.protocol_type, join.names):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return c.answer(join.ticket, join_refused(code, request.member_id))
        if join.needs_member_id:
            return c.answer(join.ticket, join_refused(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        replaced = group.static_member(request.group_instance_id)
        downgrade = replaced is not None and self._migration.can_downgrade_replacing(group, replaced.id)
        draft = Draft(c, group.group_id)
        member = self._member(draft, group, member_id, join)
        updated = msgspec.structs.replace(
            member,
            instance_id=member.instance_id or request.group_instance_id,
            rack_id=subscription.rack_id or member.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=tuple(sorted(set(subscription.topics))),
            regex="",
            assignor=None,
            client=join.client,
            classic=ClassicSide(request.session_timeout_ms, join.protocols),
        )
        claimed = {entry.topic: list(entry.partitions) for entry in subscription.owned_partitions}
        owned = [TopicPartitions(topic_id=t, partitions=p) for t, p in by_id(c.image, claimed).items()]
        updated = self._heartbeat.advance(draft, member, updated, owned)
        if downgrade:
            self._migration.downgrade(draft, draft.group, leaving=None)
        return self._answer_join(draft, join, updated, downgrade=downgrade)

    def _member(self, draft: Draft, group: ConsumerGroup, member_id: str, join: Join) -> Member:
        request = join.request
        instance_id = request.group_instance_id
        if instance_id is None:
            return group.members.get(member_id) or Member(id=member_id)
        present = group.static_member(instance_id)
        if request.member_id != UNKNOWN_MEMBER:
            return check_instance(present, member_id, instance_id)
        if present is None:
            return Member(id=member_id)
        return self._heartbeat.replace(draft, present, member_id)

    def _answer_join(self, draft: Draft, join: Join, member: Member, *, downgrade: bool) -> None:
        request = join.request
        group_id = draft.group_id

        def durable() -> None:
            self._c.timers.cancel(("rejoin", group_id, member.id))
            if not downgrade:
                self._heartbeat.watch(group_id, member.id, request.session_timeout_ms)
                self._c.timers.schedule(
                    ("resync", group_id, member.id),
                    self._c.after(request.rebalance_timeout_ms),
                    lambda: self._heartbeat.expired(group_id, member.id),
                )
            response = JoinGroupResponse(
                member_id=member.id,
                generation_id=member.epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=join.protocols[0][0],
            )
            self._c.answer(join.ticket, response)

        def failed(code: ErrorCode) -> None:
            self._c.answer(join.ticket, join_refused(error_after_append(code), request.member_id))

        draft.commit(durable, failed)

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, ticket: Ticket) -> None:
        member, classic = self._classic_member(group, request.member_id, request.group_instance_id)
        if member.epoch != request.generation_id:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        name = classic.protocols[0][0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
            None,
            name,
        ):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.assignment_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._expect_rejoin(group, member)
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._c.timers.cancel(("resync", group.group_id, member.id))
        self._heartbeat.watch(group.group_id, member.id, classic.session_timeout_ms)
        version = embedded_version(classic.protocols[0][1])
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=write_assignment(named(self._c.image, member.assigned), version),
        )
        self._c.answer_written(
            group.group_id, ticket, response, lambda code: SyncGroupResponse(error_code=code)
        )

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> HeartbeatResponse:
        member, classic = self._classic_member(group, request.member_id, request.group_instance_id)
        if member.epoch != request.generation_id:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        self._heartbeat.watch(group.group_id, member.id, classic.session_timeout_ms)
        if (
            member.epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not self._waits(group, member))
        ):
            self._expect_rejoin(group, member)
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def leave(self, group: ConsumerGroup, request: LeaveGroupRequest, ticket: Ticket) -> None:
        answers: list[MemberResponse] = []
        leaving: dict[str, Member] = {}
        for identity in request.members:
            answer = MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id
            )
            try:
                member = self._leaver(group, identity)
                leaving[member.id] = member
            except GroupError as error:
                answer.error_code = error.code
            answers.append(answer)
        response = LeaveGroupResponse(members=answers)
        if not leaving:
            return self._c.answer(ticket, response)
        draft = Draft(self._c, group.group_id)
        self._heartbeat.remove(draft, list(leaving.values()))
        return draft.commit(
            lambda: self._c.answer(ticket, response),
            lambda code: self._c.answer(ticket, LeaveGroupResponse(error_code=error_after_append(code))),
        )

    def _leaver(self, group: ConsumerGroup, identity: MemberIdentity) -> Member:
        """Of either protocol: an administrator who removes members asks no further than their names."""
        if identity.group_instance_id is None:
            return group.member(identity.member_id)
        present = group.static_member(identity.group_instance_id)
        member_id = identity.member_id
        if member_id == UNKNOWN_MEMBER and present is not None:
            member_id = present.id  # It may know only the instance.
        return check_instance(present, member_id, identity.group_instance_id)

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[Member, ClassicSide]:
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = check_instance(group.static_member(instance_id), member_id, instance_id)
        if member.classic is None:
            raise GroupError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol."
            )
        return member, member.classic

    def _waits(self, group: ConsumerGroup, member: Member) -> bool:
        """Whether somebody still holds part of what the member is to get."""
        return any(
            group.owner(topic_id, partition) not in (None, member.id)
            for topic_id, partitions in group.targets.get(member.id, NO_TARGET).items()
            for partition in partitions
        )

    def _expect_rejoin(self, group: ConsumerGroup, member: Member) -> None:
        key = ("rejoin", group.group_id, member.id)
        if key not in self._c.timers:
            deadline = self._c.after(member.rebalance_timeout_ms)
            group_id, member_id = group.group_id, member.id
            self._c.timers.schedule(key, deadline, lambda: self._heartbeat.expired(group_id, member_id))


def _subscription(join: Join) -> ConsumerProtocolSubscription | None:
    """What the member subscribes to: the same in each of its protocols."""
    try:
        return read_subscription(join.protocols[0][1]) if join.protocols else None
    except WireError:
        return None
