"""ConsumerGroupHeartbeat (KIP-848): one request to join, stay, reconcile and leave.

A heartbeat does three things, in this order:

1. It creates or updates the member; if subscriptions or topics changed, the group's epoch grows.
2. If the group's epoch is ahead of the target assignment, the target is computed anew.
3. The member is moved towards its target as far as it can go.

A heartbeat that finds nothing to do writes nothing.
"""

from collections.abc import Callable

import msgspec

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.draft import Draft
from penstock.groups.consumer.group import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NO_PARTITIONS,
    NO_TARGET,
    ConsumerGroup,
    Member,
    MemberState,
    Partitions,
)
from penstock.groups.consumer.reconcile import Owned, reconcile
from penstock.groups.consumer.records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    regex_tombstone,
    target_record,
)
from penstock.groups.consumer.settings import group_times
from penstock.groups.consumer.target import (
    assignment_delay_ms,
    metadata_hash,
    refresh_regexes,
    topic_ids,
    update_epoch,
    update_target,
)
from penstock.groups.core import Client, Context, GroupError, ignore, nothing
from penstock.groups.memory import PARTITION_BYTES
from penstock.groups.migration import Migration
from penstock.shards.journal import Durable, Failed
from penstock.shards.shard import Ticket, error_after_append
from penstock.wire.api.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.wire.errors import ErrorCode

MEMBER_ID_FROM_CLIENT_SINCE = 1


def heartbeat_refused(code: ErrorCode, message: str = "") -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message or None)


class ConsumerHeartbeat:
    __slots__ = ("_c", "_migration")

    def __init__(self, context: Context, migration: Migration) -> None:
        self._c = context
        self._migration = migration

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client: Client,
        ticket: Ticket,
        sees: Callable[[str], bool],
    ) -> None:
        self._check(request, version)
        if request.member_epoch < 0:
            self._leave(request, ticket)
        else:
            self._stay(request, client, ticket, sees)

    def _check(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        epoch = request.member_epoch
        if version >= MEMBER_ID_FROM_CLIENT_SINCE or epoch > 0 or epoch == LEAVE_EPOCH:
            _require(request.member_id.strip(), "MemberId can't be empty.")
        _require(request.group_id.strip(), "GroupId can't be empty.")
        _require(request.instance_id is None or request.instance_id.strip(), "InstanceId can't be empty.")
        _require(request.rack_id is None or request.rack_id.strip(), "RackId can't be empty.")
        if epoch == 0:
            _require(
                request.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request."
            )
            _require(request.topic_partitions == [], "TopicPartitions must be empty when (re-)joining.")
            _require(
                request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            )
        elif epoch == LEAVE_STATIC_EPOCH:
            _require(request.instance_id is not None, "InstanceId can't be null.")
        else:
            _require(epoch >= LEAVE_STATIC_EPOCH, f"MemberEpoch is {epoch}, but must be at least -2.")
        asked = request.server_assignor
        if asked is not None and asked not in self._c.settings.assignors:
            raise GroupError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {asked} is not supported."
                f" Supported assignors: {', '.join(self._c.settings.assignors)}.",
            )

    # Join and stay

    def _stay(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        ticket: Ticket,
        sees: Callable[[str], bool],
    ) -> None:
        self._keep(request, client)
        draft = Draft(self._c, request.group_id)
        group = self._enter(draft, joining=request.member_epoch == 0)
        member_id = request.member_id or self._c.new_id()
        if member_id not in group.members and len(group.members) >= self._c.settings.group_consumer_max_size:
            raise GroupError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The consumer group has reached its maximum capacity"
                f" of {self._c.settings.group_consumer_max_size} members.",
            )
        member = self._member(draft, member_id, request)
        updated = _updated(member, request, client)
        updated = self.advance(draft, member, updated, request.topic_partitions, sees)
        self._watch(draft.group_id, updated)
        response = ConsumerGroupHeartbeatResponse(
            member_id=updated.id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(draft.group),
        )
        full = request.member_epoch == 0 or (
            request.rebalance_timeout_ms != -1
            and request.topic_partitions is not None
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        )
        if full or _differ(member.assigned, updated.assigned):
            # A member that may have missed an answer says everything anew.
            response.assignment = _assignment(updated)
        draft.commit(lambda: self._c.answer(ticket, response), self._refuse(ticket))

    def _keep(self, request: ConsumerGroupHeartbeatRequest, client: Client) -> None:
        """Before anything is changed: whether what the request says of its member may stay."""
        names = request.subscribed_topic_names
        if request.member_epoch != 0 and names is None:
            return
        c = self._c
        group = c.groups.get(request.group_id)
        present = None if group is None else group.members.get(request.member_id)
        size = _updated(Member(id=request.member_id), request, client).kept_bytes
        if not isinstance(group, ConsumerGroup) or group.is_empty:
            # The first member gets all there is; it is shared out to those who follow.
            topics = c.image.topics if request.subscribed_topic_regex else names or ()
            found = (c.image.topics.get(name) for name in topics)
            size += PARTITION_BYTES * sum(len(topic.partitions) for topic in found if topic is not None)
        c.keep(size - (0 if present is None else present.kept_bytes))

    def _enter(self, draft: Draft, *, joining: bool) -> ConsumerGroup:
        """The group to work on: as it is, new, or converted from the classic protocol."""
        group = self._c.groups.get(draft.group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if not joining:
            what = "not found" if group is None else "is not a consumer group"
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {draft.group_id} {what}.")
        if isinstance(group, ClassicGroup) and not group.is_empty:
            self._migration.upgrade(draft, group)
            self.restore_timers(draft.group)
            return draft.group
        if group is not None:
            draft.drop_classic(group)
        draft.start(ConsumerGroup(draft.group_id))
        return draft.group

    def _member(self, draft: Draft, member_id: str, request: ConsumerGroupHeartbeatRequest) -> Member:
        group = draft.group
        epoch = request.member_epoch
        if request.instance_id is None:
            if epoch == 0:
                # A member that was fenced, or whose answer got lost, starts over under the id it has.
                return group.members.get(member_id) or Member(id=member_id)
            member = group.member(member_id)
            _check_epoch(member, epoch, request.topic_partitions)
            return member
        present = group.static_member(request.instance_id)
        if epoch != 0:
            checked = check_instance(present, member_id, request.instance_id)
            _check_epoch(checked, epoch, request.topic_partitions)
            return checked
        if present is None:
            return Member(id=member_id)
        if present.classic is None and present.epoch != LEAVE_STATIC_EPOCH and present.id != member_id:
            raise GroupError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {request.instance_id} cannot join the group"
                f" because the instance id is owned by {present.id} member.",
            )
        return self.replace(draft, present, member_id)

    def replace(self, draft: Draft, old: Member, new_id: str) -> Member:
        """A static member came back as another process: it takes over what the old one had."""
        if old.id == new_id and old.epoch != LEAVE_STATIC_EPOCH:
            return old
        group_id = draft.group_id
        target = draft.group.targets.get(old.id, NO_TARGET)
        new = msgspec.structs.replace(old, id=new_id, epoch=0, previous_epoch=0)
        if old.id != new_id:
            draft.emit(*member_tombstones(group_id, (old.id,)))
            self.forget_timers(group_id, old.id)
        draft.emit(member_record(group_id, new), target_record(group_id, new_id, target))
        draft.emit(current_record(group_id, new))
        return new

    def advance(
        self,
        draft: Draft,
        member: Member,
        updated: Member,
        owned: Owned,
        sees: Callable[[str], bool] | None = None,
    ) -> Member:
        """The three steps for one member; it is in the draft when they are done, as it then is. `sees`: see
        `refresh_regexes`."""
        c = self._c
        group_id = draft.group_id
        if updated != draft.group.members.get(member.id):
            draft.emit(member_record(group_id, updated))
        subscription_changed = (updated.topics, updated.regex) != (member.topics, member.regex)
        regexes_changed = refresh_regexes(c, draft, sees)
        update_epoch(c, draft, bump=subscription_changed or regexes_changed)
        group = draft.group
        if group.epoch > group.assignment_epoch and assignment_delay_ms(c, group) <= 0:
            update_target(c, draft)
            group = draft.group
        if group.members[updated.id].is_reconciled_to(group.assignment_epoch) and not subscription_changed:
            return updated

        def held_by_other(topic_id: bytes, partition: int) -> bool:
            return group.owner(topic_id, partition) not in (None, updated.id)

        moved = reconcile(
            updated,
            target_epoch=group.assignment_epoch,
            target=group.targets.get(updated.id, NO_TARGET),
            owned=owned,
            held_by_other=held_by_other,
            subscribed=topic_ids(c.image, group.topics_of(updated)),
            subscription_changed=subscription_changed,
        )
        if moved is not updated:
            draft.emit(current_record(group_id, moved))
            self._limit_revocation(group_id, moved)
        return moved

    def _limit_revocation(self, group_id: str, member: Member) -> None:
        """A member must give up partitions within its rebalance timeout. Classic ones have other limits."""
        if member.classic is not None:
            return
        key = ("rebalance", group_id, member.id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._c.timers.cancel(key)
            return
        epoch = member.epoch

        def expired() -> None:
            found = self._find(group_id, member.id)
            if found is not None and found[1].epoch == epoch:
                self.fence(*found, nothing, ignore)

        self._c.timers.schedule(key, self._c.after(member.rebalance_timeout_ms), expired)

    # Leave

    def _leave(self, request: ConsumerGroupHeartbeatRequest, ticket: Ticket) -> None:
        group = self._c.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
        response = ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = check_instance(
                group.static_member(request.instance_id), request.member_id, request.instance_id
            )

        def answer() -> None:
            self._c.answer(ticket, response)

        if request.member_epoch == LEAVE_STATIC_EPOCH:
            # It will be back within its session: its place and its partitions are kept for it.
            draft = Draft(self._c, request.group_id)
            away = msgspec.structs.replace(member, epoch=LEAVE_STATIC_EPOCH, revoking=NO_PARTITIONS)
            draft.emit(current_record(request.group_id, away))
            draft.commit(answer, self._refuse(ticket))
            return
        self.fence(group, member, answer, self._refuse(ticket))

    def fence(self, group: ConsumerGroup, member: Member, durable: Durable, failed: Failed) -> None:
        """Remove a member. The others are rebalanced at their next heartbeat."""
        draft = Draft(self._c, group.group_id)
        if self._migration.can_downgrade_without(group, member.id):
            self._migration.downgrade(draft, group, leaving=member)
            if not draft.fits:
                # Classic members stand in one record all together. These stay what they are.
                draft = Draft(self._c, group.group_id)
                self.remove(draft, [member])
        else:
            self.remove(draft, [member])
        draft.commit(durable, failed)

    def remove(self, draft: Draft, members: list[Member]) -> None:
        """Remove members and raise the epoch."""
        group_id = draft.group_id
        draft.emit(*member_tombstones(group_id, (member.id for member in members)))
        for member in members:
            self.forget_timers(group_id, member.id)
        group = draft.group
        for regex in [regex for regex in group.resolved if regex not in group.regexes]:
            draft.emit(regex_tombstone(group_id, regex))
        found = metadata_hash(self._c.image, draft.group.subscribed_topics())
        draft.emit(epoch_record(group_id, group.epoch + 1, found))

    # Time

    def _watch(self, group_id: str, member: Member) -> None:
        self.watch(group_id, member.id, self._session_ms(group_id))

    def watch(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Fence the member unless it is heard of again within this time."""
        key = ("session", group_id, member_id)
        deadline = self._c.after(timeout_ms)
        if not self._c.timers.extend(key, deadline):
            self._c.timers.schedule(key, deadline, lambda: self.expired(group_id, member_id))

    def expired(self, group_id: str, member_id: str) -> None:
        found = self._find(group_id, member_id)
        if found is not None:
            self.fence(*found, nothing, ignore)

    def restore_timers(self, group: ConsumerGroup) -> None:
        """After a load, or after a failed write took state back."""
        for member in group.members.values():
            timeout = self._session_ms(group.group_id)
            if member.classic is not None:
                timeout = member.classic.session_timeout_ms
            self.watch(group.group_id, member.id, timeout)
            self._limit_revocation(group.group_id, member)

    def watch_again(self, group: ConsumerGroup) -> None:
        """Set the timers that are missing; the others go on as they are."""
        timers = self._c.timers
        for member in group.members.values():
            if ("session", group.group_id, member.id) not in timers:
                classic = member.classic
                timeout = self._session_ms(group.group_id) if classic is None else classic.session_timeout_ms
                self.watch(group.group_id, member.id, timeout)
            if ("rebalance", group.group_id, member.id) not in timers:
                self._limit_revocation(group.group_id, member)

    def forget_timers(self, group_id: str, member_id: str) -> None:
        for kind in ("session", "rebalance", "rejoin", "resync"):
            self._c.timers.cancel((kind, group_id, member_id))

    def _find(self, group_id: str, member_id: str) -> tuple[ConsumerGroup, Member] | None:
        group = self._c.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or member_id not in group.members:
            return None
        return group, group.members[member_id]

    def _session_ms(self, group_id: str) -> int:
        return group_times(self._c, group_id).session_timeout_ms

    def _heartbeat_interval_ms(self, group: ConsumerGroup) -> int:
        """When to come again: as always, or as soon as the assignment that is due may be made."""
        usual = group_times(self._c, group.group_id).heartbeat_interval_ms
        if group.epoch <= group.assignment_epoch:
            return usual
        return max(1, min(usual, assignment_delay_ms(self._c, group)))

    def _refuse(self, ticket: Ticket) -> Failed:
        return lambda code: self._c.answer(ticket, heartbeat_refused(error_after_append(code)))


def check_instance(member: Member | None, member_id: str, instance_id: str) -> Member:
    if member is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.id != member_id:
        raise GroupError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.id}.",
        )
    return member


def _check_epoch(member: Member, epoch: int, owned: Owned) -> None:
    if epoch == member.epoch:
        return
    # With the epoch before, and nothing that it should not own: the answer with the new epoch was lost.
    if epoch == member.previous_epoch and epoch < member.epoch and owned is not None:
        held = member.assigned
        if all(partition in held.get(tp.topic_id, {}) for tp in owned for partition in tp.partitions):
            return
    size = "greater" if epoch > member.epoch else "smaller"
    raise GroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group"
        f" coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _updated(member: Member, request: ConsumerGroupHeartbeatRequest, client: Client) -> Member:
    """What is null in the request stays as it was."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    return msgspec.structs.replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client=client,
        topics=member.topics if names is None else tuple(sorted(set(names))),
        regex=member.regex if regex is None else regex,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        classic=None,
    )


def _differ(before: Partitions, after: Partitions) -> bool:
    """Whether other partitions are assigned, at whatever epoch."""
    if before is after:
        return False
    return {t: set(p) for t, p in before.items()} != {t: set(p) for t, p in after.items()}


def _assignment(member: Member) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in sorted(member.assigned.items())
        ]
    )


def _require(holds: object, message: str) -> None:
    if not holds:
        raise GroupError(ErrorCode.INVALID_REQUEST, message)
