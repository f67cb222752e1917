"""Live groups that change their protocol (`group.consumer.migration.policy`).

A classic group becomes a consumer group when its first member of the new protocol joins. The others go on
with the classic requests, and `mixed` serves them. The group becomes classic again when the last member of
the new protocol goes. Offsets do not change: they belong to the group's name.
"""

from collections.abc import Mapping

from penstock.groups.classic.embedded import (
    CONSUMER_PROTOCOL_TYPE,
    embedded_version,
    read_assignment,
    read_subscription,
    write_assignment,
)
from penstock.groups.classic.group import ClassicGroup, ClassicMember, State
from penstock.groups.classic.joining import ClassicJoin, join_refused
from penstock.groups.consumer.draft import Draft
from penstock.groups.consumer.group import ClassicSide, ConsumerGroup, Member, Partitions, Target
from penstock.groups.consumer.records import group_records, group_tombstones
from penstock.groups.consumer.target import metadata_hash
from penstock.groups.core import Context, GroupError
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.wire.api.sync_group import SyncGroupResponse
from penstock.wire.errors import ErrorCode, WireError


def named(image: ClusterImage, partitions: Partitions | Target) -> dict[str, list[int]]:
    """By topic name; topics that are gone are left out."""
    return {
        image.names[topic_id]: sorted(indexes)
        for topic_id, indexes in partitions.items()
        if topic_id in image.names
    }


def by_id(image: ClusterImage, partitions: Mapping[str, list[int]]) -> dict[bytes, list[int]]:
    return {
        topic.id: indexes
        for name, indexes in partitions.items()
        if (topic := image.topics.get(name)) is not None
    }


class Migration:
    __slots__ = ("_c", "_join")

    def __init__(self, context: Context, join: ClassicJoin) -> None:
        self._c = context
        self._join = join

    # To the consumer protocol

    def upgrade(self, draft: Draft, classic: ClassicGroup) -> None:
        settings = self._c.settings
        if (
            not settings.upgrade_enabled
            or not classic.is_consumer
            or len(classic.members) > settings.group_consumer_max_size
        ):
            raise GroupError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {classic.group_id} is not a consumer group."
            )
        try:
            group = self._converted(classic)
        except WireError:
            raise GroupError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Cannot upgrade the classic group {classic.group_id} to consumer group"
                " because the embedded consumer protocol is malformed.",
            ) from None
        self.refuse_parked(classic, ErrorCode.REBALANCE_IN_PROGRESS)
        draft.drop_classic(classic)
        draft.emit(*group_records(group, self._c.now.wall_ms))

    def _converted(self, classic: ClassicGroup) -> ConsumerGroup:
        """Members keep what the classic leader assigned to them, as the target and as what they own."""
        group = ConsumerGroup(classic.group_id)
        epoch = group.epoch = group.assignment_epoch = max(classic.generation, 1)
        taken: set[PartitionKey] = set()
        for member in classic.members.values():
            subscription = read_subscription(member.metadata(classic.protocol or member.protocols[0][0]))
            given = by_id(self._c.image, read_assignment(member.assignment))
            # Leaders are clients and may err: a partition that two members were given is the first one's.
            assigned = {
                topic_id: {p: epoch for p in partitions if (topic_id, p) not in taken}
                for topic_id, partitions in given.items()
            }
            taken.update((topic_id, p) for topic_id, partitions in given.items() for p in partitions)
            group.targets[member.id] = {t: frozenset(p) for t, p in assigned.items()}
            group.put_member(
                Member(
                    id=member.id,
                    instance_id=member.instance_id,
                    rack_id=subscription.rack_id,
                    client=member.client,
                    topics=tuple(sorted(set(subscription.topics))),
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    classic=ClassicSide(member.session_timeout_ms, member.protocols),
                    epoch=epoch,
                    previous_epoch=epoch,
                    assigned=assigned,
                )
            )
        group.metadata_hash = metadata_hash(self._c.image, group.subscribed_topics())
        return group

    def refuse_parked(self, classic: ClassicGroup, code: ErrorCode) -> None:
        for member in classic.members.values():
            ticket = classic.unpark_join(member)
            if ticket is not None:
                self._c.answer(ticket, join_refused(code, member.id))
            if member.sync_ticket is not None:
                self._c.answer(member.sync_ticket, SyncGroupResponse(error_code=code))
                member.sync_ticket = None

    # And back

    def can_downgrade_without(self, group: ConsumerGroup, member_id: str) -> bool:
        """Whether this member is the last of the new protocol, and others remain."""
        settings = self._c.settings
        return (
            settings.downgrade_enabled
            and len(group.members) > 1
            and group.all_classic_except(member_id)
            and len(group.members) - 1 <= settings.group_max_size
        )

    def can_downgrade_replacing(self, group: ConsumerGroup, member_id: str) -> bool:
        """Whether a classic member that takes the place of this one leaves only classic members."""
        settings = self._c.settings
        return (
            settings.downgrade_enabled
            and group.all_classic_except(member_id)
            and len(group.members) <= settings.group_max_size
        )

    def downgrade(self, draft: Draft, group: ConsumerGroup, leaving: Member | None) -> ClassicGroup:
        """`group` is as the draft has it; the member that leaves is still in it."""
        classic = ClassicGroup(group.group_id)
        classic.generation = group.epoch
        for member in group.members.values():
            if leaving is not None and member.id == leaving.id:
                continue
            assert member.classic is not None
            classic.add(
                ClassicMember(
                    id=member.id,
                    instance_id=member.instance_id,
                    client=member.client,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.classic.session_timeout_ms,
                    protocol_type=CONSUMER_PROTOCOL_TYPE,
                    protocols=member.classic.protocols,
                )
            )
        classic.protocol = classic.select_protocol()
        classic.subscribed = classic.compute_subscribed()
        classic.state = State.STABLE
        classic.state_since_ms = self._c.now.wall_ms
        classic.stored = True
        for classic_member in classic.members.values():
            target = named(self._c.image, group.targets.get(classic_member.id, {}))
            version = embedded_version(classic_member.metadata(classic.protocol))
            classic_member.assignment = write_assignment(target, version)
        draft.emit(*group_tombstones(group))
        assignments = {m.id: m.assignment for m in classic.members.values()}
        draft.become(classic, (classic.key(), classic.value(assignments)))
        for classic_member in classic.members.values():
            self._join.expect_heartbeat(classic, classic_member.id, classic_member.session_timeout_ms)
        if leaving is not None:
            # What it had must go to the others.
            self._join.prepare(classic)
        return classic
