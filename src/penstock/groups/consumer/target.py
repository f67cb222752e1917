"""Computes a target assignment from subscriptions: topics, their hashes, and each member's partitions."""

from collections.abc import Callable, Iterable
from hashlib import blake2b

from penstock.groups.consumer.assignors import ASSIGNORS, MemberSpec
from penstock.groups.consumer.draft import Draft
from penstock.groups.consumer.group import NO_TARGET, ConsumerGroup, ResolvedRegex
from penstock.groups.consumer.records import (
    epoch_record,
    regex_record,
    regex_tombstone,
    target_epoch_record,
    target_record,
)
from penstock.groups.consumer.settings import group_times
from penstock.groups.core import Context, GroupError
from penstock.metadata.image import ClusterImage
from penstock.wire.errors import ErrorCode

REGEX_REFRESH_INTERVAL_MIN_MS = 1_000
"""Topics may be created in bursts. Each resolution that finds something new rebalances the group, so there
is at least this long between two."""


def metadata_hash(image: ClusterImage, topics: set[str]) -> int:
    """Differs when a subscribed topic was created, deleted, recreated or given more partitions. 0: none."""
    found = [topic for name in sorted(topics) if (topic := image.topics.get(name)) is not None]
    if not found:
        return 0
    digest = blake2b(digest_size=8)
    for topic in found:
        digest.update(topic.id + len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)


def topic_ids(image: ClusterImage, names: frozenset[str]) -> frozenset[bytes]:
    return frozenset(topic.id for name in names if (topic := image.topics.get(name)) is not None)


def resolve_pattern(regex: str, names: Iterable[str]) -> frozenset[str]:
    # Loaded when the first one is used: most groups name their topics.
    from penstock.groups.consumer.regex import TopicPattern
    from penstock.groups.consumer.regex_syntax import RegexError

    try:
        return TopicPattern(regex).select(names)
    except RegexError as error:
        raise GroupError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from None


def refresh_regexes(context: Context, draft: Draft, sees: Callable[[str], bool] | None) -> bool:
    """Resolve what needs it, forget what nobody uses. True if the group now sees other topics.

    `sees`: the topics that the member may know of, by whose request it is done: what it may not is left out.
    None: it is not done by this one.
    """
    group = draft.group
    for regex in [regex for regex in group.resolved if regex not in group.regexes]:
        draft.emit(regex_tombstone(group.group_id, regex))
    group = draft.group
    if not group.regexes or sees is None:
        return False
    missing = [regex for regex in group.regexes if regex not in group.resolved]
    now = context.now
    age = now.ms - group.regex_checked_ms
    all_due = age >= context.settings.group_consumer_regex_refresh_interval_ms or (
        group.regex_wanted and age >= REGEX_REFRESH_INTERVAL_MIN_MS
    )
    if not missing and not all_due:
        return False
    image = context.image
    changed = False
    for regex in list(group.regexes) if all_due else missing:
        found = resolve_pattern(regex, image.topics)  # Internal ones too, as in Kafka.
        topics = frozenset(name for name in found if sees(name))
        known = draft.group.resolved.get(regex)
        if known is None or known.topics != topics:
            changed = True
            resolved = ResolvedRegex(topics, image.version, now.wall_ms)
            draft.emit(regex_record(group.group_id, regex, resolved))
    if all_due:
        draft.group.regex_wanted = False
        draft.group.regex_checked_ms = now.ms
    return changed


def update_epoch(context: Context, draft: Draft, *, bump: bool) -> None:
    """Raise the group's epoch if asked to, or if the topics it subscribes to are not what they were.

    A new group is at epoch 1 before it has anything, so its first assignment is that of epoch 2.
    """
    group = draft.group
    if not bump and not group.refresh_wanted:
        return
    found = metadata_hash(context.image, group.subscribed_topics())
    epoch = max(group.epoch, 1) + (1 if bump or found != group.metadata_hash else 0)
    if epoch != group.epoch:
        draft.emit(epoch_record(group.group_id, epoch, found))
    draft.group.refresh_wanted = False


def update_target(context: Context, draft: Draft) -> None:
    """Assign anew, and record what changed of it."""
    group = draft.group
    image = context.image
    members = [
        MemberSpec(
            id=member.id,
            topics=topic_ids(image, group.topics_of(member)),
            target=group.targets.get(member.id, NO_TARGET),
            instance_id=member.instance_id,
        )
        for member in group.members.values()
    ]
    counts = {
        topic.id: len(topic.partitions)
        for name in group.subscribed_topics()
        if (topic := image.topics.get(name)) is not None
    }
    assignment = ASSIGNORS[assignor_of(context, group)](members, counts)
    group_id = group.group_id
    for member_id, target in assignment.items():
        if group.targets.get(member_id) != target:
            draft.emit(target_record(group_id, member_id, target))
    draft.emit(target_epoch_record(group_id, group.epoch, context.now.wall_ms))


def assignment_delay_ms(context: Context, group: ConsumerGroup) -> int:
    """How long until the group may be assigned anew; the first member of a group waits for nobody.

    Wall clock, because it outlives coordinators: if it jumps back, the wait is never longer than the
    interval.
    """
    interval = group_times(context, group.group_id).assignment_interval_ms
    if not group.assignment_timestamp or len(group.members) <= 1:
        return 0
    return min(interval, group.assignment_timestamp + interval - context.now.wall_ms)


def assignor_of(context: Context, group: ConsumerGroup) -> str:
    """The one most members ask for; one that has since been disabled counts for nothing."""
    allowed = context.settings.assignors
    preferred = group.preferred_assignor()
    return preferred if preferred in allowed else allowed[0]
