r"""One member's way to its target: give up first, then take what is free.

    STABLE --(new target)--> UNREVOKED_PARTITIONS --(member no longer owns them)--+
       ^  \                                                                       |
       |   +--(nothing to give up)---------------------------------------------+  |
       |                                                                       v  v
       +--(all of it is free)-- UNRELEASED_PARTITIONS <--(others still hold some of it)

A member keeps its epoch until it has given up its surplus partitions, and then moves to the epoch of the
target. The partitions that it reports as owned decide when that is: a heartbeat that reports nothing (null)
proves nothing.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.groups.consumer.group import (
    NO_PARTITIONS,
    Member,
    MemberState,
    Partitions,
    Target,
)
from penstock.groups.core import GroupError
from penstock.wire.api.consumer_group_heartbeat import TopicPartitions
from penstock.wire.errors import ErrorCode

Owned = Sequence[TopicPartitions] | None
"""What the member says it owns; None: it did not say."""


def still_owns(owned: Owned, partitions: Partitions) -> bool:
    """Whether the member may still work on any of these."""
    if owned is None:
        return True
    return any(
        partition in partitions.get(entry.topic_id, NO_PARTITIONS)
        for entry in owned
        for partition in entry.partitions
    )


def reconcile(
    member: Member,
    *,
    target_epoch: int,
    target: Target,
    owned: Owned,
    held_by_other: Callable[[bytes, int], bool],
    subscribed: frozenset[bytes],
    subscription_changed: bool,
) -> Member:
    """The member as far along as it can be now; the same object if nothing moves.

    `subscribed` are the topic ids that the member subscribes to: what it has unsubscribed from it gives up
    at once, whatever an older target says.
    """
    match member.state:
        case MemberState.STABLE:
            if member.epoch != target_epoch:
                return _advance(member, target_epoch, target, owned, held_by_other, subscribed)
            return _drop_unsubscribed(member, owned, subscribed) if subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS:
            if still_owns(owned, member.revoking):
                return _drop_unsubscribed(member, owned, subscribed) if subscription_changed else member
            return _advance(member, target_epoch, target, owned, held_by_other, subscribed)
        case MemberState.UNRELEASED_PARTITIONS:
            return _advance(member, target_epoch, target, owned, held_by_other, subscribed)
    if owned is None or owned:
        raise GroupError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The member is in an unknown state. It must abandon all its partitions and rejoin.",
        )
    return _advance(member, target_epoch, target, owned, held_by_other, subscribed)


def _drop_unsubscribed(member: Member, owned: Owned, subscribed: frozenset[bytes]) -> Member:
    gone = {topic_id: parts for topic_id, parts in member.assigned.items() if topic_id not in subscribed}
    if not gone:
        return member
    kept = {topic_id: parts for topic_id, parts in member.assigned.items() if topic_id in subscribed}
    revoking = {
        topic_id: {**member.revoking.get(topic_id, {}), **gone.get(topic_id, {})}
        for topic_id in (*member.revoking, *gone)
    }
    if still_owns(owned, revoking):
        return member.with_epoch(
            member.epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking
        )
    return member.with_epoch(member.epoch, assigned=kept)


def _advance(
    member: Member,
    target_epoch: int,
    target: Target,
    owned: Owned,
    held_by_other: Callable[[bytes, int], bool],
    subscribed: frozenset[bytes],
) -> Member:
    kept: dict[bytes, Mapping[int, int]] = {}
    revoking: dict[bytes, Mapping[int, int]] = {}
    taking: dict[bytes, dict[int, int]] = {}
    waiting = False
    for topic_id in dict.fromkeys((*target, *member.assigned)):
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        present = member.assigned.get(topic_id, {})
        stay = {partition: epoch for partition, epoch in present.items() if partition in wanted}
        leave = {partition: epoch for partition, epoch in present.items() if partition not in wanted}
        missing = wanted.difference(stay)
        free = {partition for partition in missing if not held_by_other(topic_id, partition)}
        waiting = waiting or len(free) < len(missing)
        if stay:
            kept[topic_id] = stay
        if leave:
            revoking[topic_id] = leave
        if free:
            taking[topic_id] = dict.fromkeys(sorted(free), target_epoch)
    if revoking and still_owns(owned, revoking):
        return member.with_epoch(
            member.epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking
        )
    assigned = {
        topic_id: {**kept.get(topic_id, {}), **taking.get(topic_id, {})}
        for topic_id in dict.fromkeys((*kept, *taking))
    }
    state = MemberState.UNRELEASED_PARTITIONS if waiting else MemberState.STABLE
    moved = member.with_epoch(target_epoch, state=state, assigned=assigned, revoking=NO_PARTITIONS)
    unmoved = msgspec.structs.replace(moved, previous_epoch=member.previous_epoch)
    return member if unmoved == member else moved
