"""JoinGroup for classic groups: who is let in, and when a generation begins.

This module makes all changes from Empty, Stable or CompletingRebalance to PreparingRebalance, and from there
to CompletingRebalance or Empty. A rebalance ends as soon as every member has rejoined; the timer only serves
members that never do. The first rebalance of an empty group waits a little for others
(`group.initial.rebalance.delay.ms`), because consumers tend to start together.
"""

from penstock.groups.classic.group import (
    ClassicGroup,
    ClassicMember,
    Protocols,
    State,
    offered_bytes,
    protocols_of,
)
from penstock.groups.core import Client, Context, GroupError, encoded, ignore, nothing
from penstock.groups.memory import MEMBER_BYTES
from penstock.shards.journal import Durable, Failed
from penstock.shards.shard import Ticket, error_after_append
from penstock.wire.api.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.api.sync_group import SyncGroupResponse
from penstock.wire.errors import ErrorCode
from penstock.wire.texts import STRING_BYTES_MAX, fitting

UNKNOWN_MEMBER = ""
MEMBER_ID_REQUIRED_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9
SYNC_GRACE_MS = 1_000
"""Some clients join with a rebalance timeout of 0. Dropping them before a round trip is over, as Kafka does
if its timer is faster than their SyncGroup, would make membership a matter of luck."""

OFFER_BYTES_MAX = 4 << 20
"""What a member may offer in all its protocols: it stays in memory with the member. In Kafka none can be in a
group with more than a batch of the offsets topic holds, 1 MiB by default."""


def join_refused(code: ErrorCode, member_id: str = UNKNOWN_MEMBER) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=None)


class Join:
    """One JoinGroup request and who waits for its answer."""

    __slots__ = ("client", "protocols", "request", "ticket", "version")

    def __init__(self, request: JoinGroupRequest, version: int, client: Client, ticket: Ticket) -> None:
        self.request = request
        self.version = version
        self.client = client
        self.ticket = ticket
        self.protocols: Protocols = protocols_of(request.protocols)

    @property
    def size(self) -> int:
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)

    @property
    def kept_bytes(self) -> int:
        """What it brings to stay."""
        request = self.request
        names = len(request.member_id) + len(request.group_instance_id or "") + len(self.client.id)
        return MEMBER_BYTES + names + offered_bytes(self.protocols)

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    @property
    def needs_member_id(self) -> bool:
        """Newer dynamic members get an id first, so that a lost answer leaves no ghost in the group."""
        request = self.request
        return (
            self.version >= MEMBER_ID_REQUIRED_SINCE
            and request.member_id == UNKNOWN_MEMBER
            and request.group_instance_id is None
        )


class ClassicJoin:
    __slots__ = ("_c",)

    def __init__(self, context: Context) -> None:
        self._c = context

    # Who is let in

    def join(self, join: Join) -> None:
        """The group is classic or does not exist."""
        request = join.request
        c = self._c
        is_unknown = request.member_id == UNKNOWN_MEMBER
        group = c.groups.get(request.group_id)
        if group is None:
            if not is_unknown:
                return c.answer(join.ticket, join_refused(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
            group = ClassicGroup(request.group_id)
        assert isinstance(group, ClassicGroup)
        if not self._accepts(group, request.member_id):
            c.answer(join.ticket, join_refused(ErrorCode.GROUP_MAX_SIZE_REACHED))
            group.remove(request.member_id)
            return self.try_complete(group)
        if not group.supports(request.protocol_type, join.names):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return c.answer(join.ticket, join_refused(code, request.member_id))
        c.groups[group.group_id] = group
        return self._join_unknown(group, join) if is_unknown else self._join_known(group, join)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._c.settings.group_max_size
        match group.state:
            case State.EMPTY | State.DEAD:
                return True
            case State.PREPARING:
                # Those who wait are counted, not all members: the limit may have been lowered, and then
                # the last ones to rejoin are the ones to go.
                return member_id in group.joined or len(group.joined) < limit
        return member_id in group.members or len(group.members) < limit

    def _join_unknown(self, group: ClassicGroup, join: Join) -> None:
        request = join.request
        c = self._c
        instance_id = request.group_instance_id
        own = f"-{c.new_id()}"
        named = join.client.id if instance_id is None else instance_id
        member_id = fitting(named, STRING_BYTES_MAX - len(own)) + own
        if instance_id is not None:
            existing = group.static_members.get(instance_id)
            if existing is None:
                return self._add(group, join, member_id)
            return self._replace_static(group, join, existing, member_id)
        if not join.needs_member_id:
            return self._add(group, join, member_id)
        if len(group.pending_join) >= c.settings.group_pending_members_max:
            return c.answer(join.ticket, join_refused(ErrorCode.GROUP_MAX_SIZE_REACHED))
        group.pending_join.add(member_id)
        self.expect_heartbeat(group, member_id, request.session_timeout_ms)
        return c.answer(join.ticket, join_refused(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _join_known(self, group: ClassicGroup, join: Join) -> None:
        request = join.request
        c = self._c
        member_id = request.member_id
        if member_id in group.pending_join:
            if request.group_instance_id is not None:
                return c.answer(join.ticket, join_refused(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
            return self._add(group, join, member_id)
        try:
            member = group.check_member(member_id, request.group_instance_id)
        except GroupError as error:
            return c.answer(join.ticket, join_refused(error.code, member_id))
        unchanged = member.protocols == join.protocols
        match group.state:
            case State.PREPARING:
                return self._rejoin(group, member, join)
            case State.COMPLETING if unchanged:
                # It may have missed the answer: say again what this generation is.
                return c.answer(join.ticket, self._generation(group, member))
            case State.STABLE if unchanged and member_id != group.leader:
                # A leader that rejoins wants a rebalance: it has seen a change that the group cannot see.
                return c.answer(join.ticket, self._generation(group, member, to_leader=False))
            case State.COMPLETING | State.STABLE:
                return self._rejoin(group, member, join)
        return c.answer(join.ticket, join_refused(ErrorCode.UNKNOWN_MEMBER_ID, member_id))

    def _add(self, group: ClassicGroup, join: Join, member_id: str) -> None:
        request = join.request
        member = ClassicMember(
            id=member_id,
            instance_id=request.group_instance_id,
            client=join.client,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=join.protocols,
            is_new=True,
        )
        if group.state is State.PREPARING and group.previous_state is State.EMPTY:
            group.new_member_added = True
        group.add(member)
        group.park_join(member, join.ticket)
        self.expect_heartbeat(group, member_id, self._c.settings.group_new_member_join_timeout_ms)
        self.rebalance(group)

    def _rejoin(self, group: ClassicGroup, member: ClassicMember, join: Join) -> None:
        request = join.request
        group.update(member, join.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        self._park(group, member, join.ticket)
        self.rebalance(group)

    def _park(self, group: ClassicGroup, member: ClassicMember, ticket: Ticket) -> None:
        replaced = group.park_join(member, ticket)
        if replaced is not None:
            # Its sender asked again, over another connection: nobody reads this answer.
            self._c.answer(replaced, join_refused(ErrorCode.REBALANCE_IN_PROGRESS, member.id))

    # A static member that comes back

    def _replace_static(self, group: ClassicGroup, join: Join, old_id: str, new_id: str) -> None:
        """Same instance, new process: it takes its place over, without a rebalance if it can."""
        request = join.request
        assert request.group_instance_id is not None
        leader_before = group.leader
        old = group.members[old_id]
        self._fence(group, old)
        saved = (old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
        member = group.rename_static(request.group_instance_id, old_id, new_id)
        self._c.timers.cancel(("heartbeat", group.group_id, old_id))
        group.update(member, join.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        self.expect_heartbeat(group, new_id, member.session_timeout_ms)
        if group.state is not State.STABLE:
            # While completing, the leader may already know the old id: only a new round gets it right.
            self._park(group, member, join.ticket)
            return self.rebalance(group)
        if group.select_protocol() != group.protocol:
            self._park(group, member, join.ticket)
            return self.rebalance(group)

        def durable() -> None:
            self._c.answer(join.ticket, self._static_generation(group, member, join.version, leader_before))

        def failed(code: ErrorCode) -> None:
            self._c.answer(
                join.ticket,
                JoinGroupResponse(
                    error_code=error_after_append(code),
                    generation_id=group.generation,
                    protocol_type=group.protocol_type,
                    protocol_name=group.protocol,
                    leader=leader_before or "",
                ),
            )
            if group.members.get(new_id) is member:
                group.update(member, *saved)
                back = group.rename_static(member.instance_id or "", new_id, old_id)
                self.expect_heartbeat(group, old_id, back.session_timeout_ms)

        assignments = {m.id: m.assignment for m in group.members.values()}
        self.write(group, assignments, durable, failed)
        return None

    def _fence(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Whoever waits under this id learns that another process has its instance id."""
        code = ErrorCode.FENCED_INSTANCE_ID
        ticket = group.unpark_join(member)
        if ticket is not None:
            self._c.answer(ticket, join_refused(code, member.id))
        if member.sync_ticket is not None:
            self._c.answer(member.sync_ticket, SyncGroupResponse(error_code=code))
            member.sync_ticket = None

    def _static_generation(
        self, group: ClassicGroup, member: ClassicMember, version: int, leader_before: str | None
    ) -> JoinGroupResponse:
        if version >= SKIP_ASSIGNMENT_SINCE:
            response = self._generation(group, member)
            response.skip_assignment = group.leader == member.id
            return response
        # Older clients that see themselves as leader would assign, and their SyncGroup would be ignored:
        # naming the old id as leader makes them followers that fetch the assignment they have.
        response = self._generation(group, member, to_leader=False)
        response.leader = leader_before or ""
        return response

    # From join to generation

    def rebalance(self, group: ClassicGroup) -> None:
        """Something changed: start a rebalance, or finish the one under way if nobody is missing."""
        if group.can_rebalance:
            self.prepare(group)
        else:
            self.try_complete(group)

    def prepare(self, group: ClassicGroup) -> None:
        c = self._c
        if group.state is State.COMPLETING:
            self._cancel_syncs(group)
        group.pending_sync.clear()
        c.timers.cancel(("sync", group.group_id))
        was_empty = group.state is State.EMPTY
        group.move_to(State.PREPARING, c.now.wall_ms)
        if was_empty:
            delay = c.settings.group_initial_rebalance_delay_ms
            remaining = max(group.rebalance_timeout_ms - delay, 0)
            self._delay(group, delay, remaining)
        elif group.all_joined:
            self.complete(group)
        else:
            self._expect_joins(group)

    def try_complete(self, group: ClassicGroup) -> None:
        """Complete a rebalance whose last missing member has come or gone."""
        if (
            group.state is State.PREPARING
            and group.previous_state is not State.EMPTY  # That one waits for its delay.
            and group.all_joined
        ):
            self.complete(group)

    def _delay(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        if delay_ms == 0:
            return self._after_delay(group, 0, remaining_ms)
        key = ("join", group.group_id)
        self._c.timers.schedule(
            key, self._c.after(delay_ms), lambda: self._after_delay(group, delay_ms, remaining_ms)
        )
        return None

    def _after_delay(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        if not self._holds(group) or group.state is not State.PREPARING:
            return
        if group.new_member_added and remaining_ms > 0 and delay_ms > 0:
            group.new_member_added = False
            next_delay = min(self._c.settings.group_initial_rebalance_delay_ms, remaining_ms)
            self._delay(group, next_delay, max(remaining_ms - delay_ms, 0))
        else:
            self.complete(group)

    def _expect_joins(self, group: ClassicGroup) -> None:
        deadline = self._c.after(group.rebalance_timeout_ms)
        self._c.timers.schedule(("join", group.group_id), deadline, lambda: self._joins_expired(group))

    def _joins_expired(self, group: ClassicGroup) -> None:
        if self._holds(group) and group.state is State.PREPARING:
            self.complete(group)

    def complete(self, group: ClassicGroup) -> None:
        """Begin the next generation with those who are here."""
        c = self._c
        c.timers.cancel(("join", group.group_id))
        for member in list(group.members.values()):
            if member.join_ticket is None and not member.is_static:
                group.remove(member.id)
                c.timers.cancel(("heartbeat", group.group_id, member.id))
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none has rejoined: wait until they do or expire.
            self._expect_joins(group)
            return
        group.new_member_added = False
        group.start_generation(c.now.wall_ms)
        if group.state is State.EMPTY:
            # If this fails, a crash would bring the last generation back; its members would expire again.
            self.write(group, {}, nothing, ignore)
            return
        for member in group.members.values():
            ticket = group.unpark_join(member)
            if ticket is not None:
                c.answer(ticket, self._generation(group, member))
            member.is_new = False
            self.expect_heartbeat(group, member.id, member.session_timeout_ms)
            group.pending_sync.add(member.id)
        self._expect_syncs(group)

    def _expect_syncs(self, group: ClassicGroup) -> None:
        generation = group.generation
        self._c.timers.schedule(
            ("sync", group.group_id),
            self._c.after(max(group.rebalance_timeout_ms, SYNC_GRACE_MS)),
            lambda: self._syncs_expired(group, generation),
        )

    def write(
        self, group: ClassicGroup, assignments: dict[str, bytes], durable: Durable, failed: Failed
    ) -> None:
        """The group as it is, in one record. A group that is too large for one is not written."""
        records = encoded([(group.key(), group.value(assignments))])
        if assignments and not self._c.journal.takes(records):
            failed(ErrorCode.MESSAGE_TOO_LARGE)
            return
        # From now on there may be a record: whoever removes the group must write a tombstone behind it.
        group.stored = True
        self._c.journal.append(records, durable, failed)

    def _syncs_expired(self, group: ClassicGroup, generation: int) -> None:
        if not self._holds(group) or group.generation != generation or not group.pending_sync:
            return
        if group.state not in (State.COMPLETING, State.STABLE):
            return
        for member_id in list(group.pending_sync):
            group.remove(member_id)
            self._c.timers.cancel(("heartbeat", group.group_id, member_id))
        self.prepare(group)

    def _cancel_syncs(self, group: ClassicGroup) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.sync_ticket is not None:
                refused = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
                self._c.answer(member.sync_ticket, refused)
                member.sync_ticket = None
                self.expect_heartbeat(group, member.id, member.session_timeout_ms)

    def _generation(
        self, group: ClassicGroup, member: ClassicMember, *, to_leader: bool = True
    ) -> JoinGroupResponse:
        leads = to_leader and group.leader == member.id
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader or "",
            member_id=member.id,
            members=group.described_to_leader() if leads else [],
        )

    # Members that go silent

    def expect_heartbeat(self, group: ClassicGroup, member_id: str, timeout_ms: int) -> None:
        key = ("heartbeat", group.group_id, member_id)
        deadline = self._c.after(timeout_ms)
        if not self._c.timers.extend(key, deadline):
            group_id = group.group_id
            self._c.timers.schedule(key, deadline, lambda: self._heartbeat_expired(group_id, member_id))

    def _heartbeat_expired(self, group_id: str, member_id: str) -> None:
        group = self._c.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            return
        if member_id in group.pending_join:
            group.remove(member_id)
            self.try_complete(group)
            return
        member = group.members.get(member_id)
        if member is None or member.satisfies_heartbeat:
            return
        self.drop(group, member)
        if group.state in (State.STABLE, State.COMPLETING):
            self.prepare(group)
        elif group.state is State.PREPARING and group.all_joined:
            self.complete(group)

    def restore_timers(self, group: ClassicGroup) -> None:
        """After a load, or after a failed write brought the group back."""
        for member in group.members.values():
            self.expect_heartbeat(group, member.id, member.session_timeout_ms)
        if group.state is State.PREPARING:
            self._expect_joins(group)
        elif group.state is State.COMPLETING:
            self._expect_syncs(group)
        elif len(group.members) > self._c.settings.group_max_size:
            # The limit was lowered: a rebalance lets everybody commit before the last ones have to go.
            self.prepare(group)

    def drop(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Remove a member; a JoinGroup of its that is parked here is refused, so that it may try again."""
        self._c.timers.cancel(("heartbeat", group.group_id, member.id))
        ticket = group.unpark_join(member)
        if ticket is not None:
            self._c.answer(ticket, join_refused(ErrorCode.UNKNOWN_MEMBER_ID))
        if member.sync_ticket is not None:
            self._c.answer(member.sync_ticket, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            member.sync_ticket = None
        group.remove(member.id)

    def _holds(self, group: ClassicGroup) -> bool:
        """Whether this very group is still the one by its name: timers may outlive it."""
        return self._c.groups.get(group.group_id) is group
