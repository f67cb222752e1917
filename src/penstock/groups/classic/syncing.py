"""SyncGroup, Heartbeat and LeaveGroup for classic groups.

This module makes the step from CompletingRebalance to Stable. It writes the leader's assignment, and gives it
out when it is durable. So a coordinator that takes over knows every assignment that a member acts on.
"""

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.classic.joining import UNKNOWN_MEMBER, ClassicJoin
from penstock.groups.core import Context, GroupError
from penstock.shards.shard import Ticket, error_after_append
from penstock.wire.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.api.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from penstock.wire.api.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.errors import ErrorCode


class ClassicSync:
    __slots__ = ("_c", "_join")

    def __init__(self, context: Context, join: ClassicJoin) -> None:
        self._c = context
        self._join = join

    def sync(self, group: ClassicGroup, request: SyncGroupRequest, ticket: Ticket) -> None:
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        if _differ(request.protocol_type, group.protocol_type) or _differ(
            request.protocol_name, group.protocol
        ):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        match group.state:
            case State.PREPARING:
                raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
            case State.COMPLETING:
                if member.sync_ticket is not None:
                    # Its sender asked again, over another connection: nobody reads this answer.
                    again = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
                    self._c.answer(member.sync_ticket, again)
                member.sync_ticket = ticket
                self._synced(group, member.id)
                if member.id == group.leader:
                    self._write_assignment(group, request)
            case State.STABLE:
                self._synced(group, member.id)
                self._c.answer(ticket, _assigned(group, member.assignment))
            case _:
                raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)

    def _synced(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.discard(member_id)
        if not group.pending_sync:
            self._c.timers.cancel(("sync", group.group_id))

    def _write_assignment(self, group: ClassicGroup, request: SyncGroupRequest) -> None:
        given = {a.member_id: bytes(a.assignment) for a in request.assignments}
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation = group.generation

        def still_completing() -> bool:
            return (
                self._c.groups.get(group.group_id) is group
                and group.state is State.COMPLETING
                and group.generation == generation
            )

        def durable() -> None:
            if still_completing():
                self._hand_out(group, assignments)

        def failed(code: ErrorCode) -> None:
            if still_completing():
                self._refuse_all(group, error_after_append(code))
                self._join.prepare(group)

        self._join.write(group, assignments, durable, failed)

    def _hand_out(self, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.sync_ticket is not None:
                self._c.answer(member.sync_ticket, _assigned(group, member.assignment))
                member.sync_ticket = None
                self._join.expect_heartbeat(group, member.id, member.session_timeout_ms)
        group.move_to(State.STABLE, self._c.now.wall_ms)

    def _refuse_all(self, group: ClassicGroup, code: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.sync_ticket is not None:
                self._c.answer(member.sync_ticket, SyncGroupResponse(error_code=code))
                member.sync_ticket = None
                self._join.expect_heartbeat(group, member.id, member.session_timeout_ms)

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest) -> HeartbeatResponse:
        """Touches a deadline and nothing else: no record, no allocation beyond the answer."""
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        self._join.expect_heartbeat(group, member.id, member.session_timeout_ms)
        if group.state is State.PREPARING:
            return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def leave(self, group: ClassicGroup, request: LeaveGroupRequest, ticket: Ticket) -> None:
        was_empty = group.is_empty
        answers = [self._leave_one(group, identity) for identity in request.members]
        if any(answer.error_code == ErrorCode.NONE for answer in answers):
            if group.state in (State.STABLE, State.COMPLETING):
                self._join.prepare(group)
            else:
                self._join.try_complete(group)
        response = LeaveGroupResponse(members=answers)
        if was_empty or not group.is_empty:
            self._c.answer(ticket, response)
            return
        # The last one left: once that is durable, nobody will wait for ghosts after a crash.
        self._c.journal.then(
            lambda: self._c.answer(ticket, response),
            lambda code: self._c.answer(ticket, LeaveGroupResponse(error_code=error_after_append(code))),
        )

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity) -> MemberResponse:
        answer = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
        member_id = identity.member_id
        if member_id in group.pending_join:
            group.remove(member_id)
            self._c.timers.cancel(("heartbeat", group.group_id, member_id))
            return answer
        if member_id == UNKNOWN_MEMBER:
            # An administrator removes a static member and knows only its instance.
            member_id = group.static_members.get(identity.group_instance_id or "", UNKNOWN_MEMBER)
        try:
            self._join.drop(group, group.check_member(member_id, identity.group_instance_id))
        except GroupError as error:
            answer.error_code = error.code
        return answer


def _assigned(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )


def _differ(asked: str | None, known: str | None) -> bool:
    return asked is not None and known is not None and asked != known
