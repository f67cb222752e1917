"""A group of the consumer protocol (KIP-848): the fold of its records.

The coordinator assigns. A group has an epoch, which grows when its membership, its subscriptions or its
topics change. It has a target assignment, computed for an epoch. Each member has an epoch of its own: that of
the target it has reached. A member gives up its surplus partitions before it gets any that another member
still holds, so a partition never has two owners.

This module holds the state and applies each record to it. `heartbeat`, `reconcile` and `migration` decide
which records are written.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

import msgspec

from penstock.groups.classic.embedded import CONSUMER_PROTOCOL_TYPE
from penstock.groups.classic.group import offered_bytes
from penstock.groups.core import Client, GroupError
from penstock.groups.memory import MEMBER_BYTES, PARTITION_BYTES, TEXT_BYTES
from penstock.groups.offsets.committed import Committed
from penstock.metadata.image import PartitionKey
from penstock.wire.errors import ErrorCode

LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2

Partitions = Mapping[bytes, Mapping[int, int]]
"""By topic id: partition to the member epoch at which it was assigned."""
Target = Mapping[bytes, frozenset[int]]
"""By topic id: what a member should come to own."""

NO_PARTITIONS: Partitions = {}
NO_TARGET: Target = {}


class MemberState(IntEnum):
    """As stored."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has been told to give up partitions and still holds them."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still hold."""
    UNKNOWN = 127


class ClassicSide(NamedTuple):
    """The JoinGroup of a member that still speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Member(msgspec.Struct, frozen=True):
    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client: Client = Client()
    topics: tuple[str, ...] = ()
    """Sorted names."""
    regex: str = ""
    """Empty: none."""
    assignor: str | None = None
    rebalance_timeout_ms: int = -1
    classic: ClassicSide | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS

    def with_epoch(self, epoch: int, **changes: object) -> "Member":
        """At a new epoch. The one before is kept, in case the answer that announces the new one is lost."""
        return msgspec.structs.replace(self, epoch=epoch, previous_epoch=self.epoch, **changes)

    @property
    def kept_bytes(self) -> int:
        """About how much memory it takes, without its partitions."""
        names = len(self.id) + len(self.instance_id or "") + len(self.rack_id or "") + len(self.client.id)
        offered = 0 if self.classic is None else offered_bytes(self.classic.protocols)
        return MEMBER_BYTES + names + subscribed_bytes(self.topics) + len(self.regex) + offered

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def held(self) -> Partitions:
        """What is assigned to it, and what it has not given up yet."""
        topics = {**self.assigned, **self.revoking}
        return {topic: {**self.assigned.get(topic, {}), **self.revoking.get(topic, {})} for topic in topics}

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        for owned in (self.assigned, self.revoking):
            epoch = owned.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


def subscribed_bytes(topics: Iterable[str]) -> int:
    return sum(len(topic) + TEXT_BYTES for topic in topics)


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    version: int
    """Of the image it was resolved against."""
    timestamp: int


class ConsumerGroup:
    __slots__ = (
        "_assignors",
        "_classic_offers",
        "_names",
        "_owners",
        "_regexes",
        "assignment_epoch",
        "assignment_timestamp",
        "classic_count",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "refresh_wanted",
        "regex_checked_ms",
        "regex_wanted",
        "resolved",
        "static_members",
        "targets",
    )

    type = "consumer"
    listed_protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_timestamp = 0
        """When the target was computed, by the wall clock; 0: never."""
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.targets: dict[str, Target] = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        self.refresh_wanted = True
        """Topics may have changed since the hash was computed. True after a load: nobody watched."""
        self.regex_wanted = True
        """Likewise for what the regular expressions match."""
        self.regex_checked_ms = -(1 << 62)
        # What follows from the members, kept in step by `put_member` and `remove_member`.
        self._names: dict[str, int] = {}
        self._regexes: dict[str, int] = {}
        self._assignors: dict[str, int] = {}
        self._owners: dict[bytes, dict[int, str]] = {}
        self._classic_offers: dict[str, int] = {}
        self.classic_count = 0

    def copy(self) -> "ConsumerGroup":
        """To go back to if a write fails. Members and targets are values; only the tables are copied."""
        twin = ConsumerGroup(self.group_id)
        twin.epoch = self.epoch
        twin.metadata_hash = self.metadata_hash
        twin.assignment_epoch = self.assignment_epoch
        twin.assignment_timestamp = self.assignment_timestamp
        twin.members = self.members.copy()
        twin.static_members = self.static_members.copy()
        twin.targets = self.targets.copy()
        twin.resolved = self.resolved.copy()
        twin.refresh_wanted = self.refresh_wanted
        twin.regex_wanted = self.regex_wanted
        twin.regex_checked_ms = self.regex_checked_ms
        twin._names = self._names.copy()
        twin._regexes = self._regexes.copy()
        twin._assignors = self._assignors.copy()
        twin._owners = {topic_id: owners.copy() for topic_id, owners in self._owners.items()}
        twin._classic_offers = self._classic_offers.copy()
        twin.classic_count = self.classic_count
        return twin

    # Questions

    @property
    def kept_bytes(self) -> int:
        assigned = sum(len(partitions) for target in self.targets.values() for partitions in target.values())
        found = sum(len(regex) + len(one.topics) * TEXT_BYTES for regex, one in self.resolved.items())
        return found + assigned * PARTITION_BYTES + sum(member.kept_bytes for member in self.members.values())

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        reconciled = all(m.is_reconciled_to(self.assignment_epoch) for m in self.members.values())
        return "Stable" if reconciled else "Reconciling"

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise GroupError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = self.static_members.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self.members[member_id]

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """Who holds the partition, or has yet to give it up."""
        return self._owners.get(topic_id, {}).get(partition)

    def topics_of(self, member: Member) -> frozenset[str]:
        """Names that the member subscribes to, by name or by regular expression."""
        names = frozenset(member.topics)
        found = self.resolved.get(member.regex) if member.regex else None
        return names if found is None else names | found.topics

    def subscribed_topics(self) -> set[str]:
        names = set(self._names)
        for regex in self._regexes:
            if regex in self.resolved:
                names |= self.resolved[regex].topics
        return names

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._names or any(
            topic in self.resolved[regex].topics for regex in self._regexes if regex in self.resolved
        )

    @property
    def regexes(self) -> Mapping[str, int]:
        """How many members use each regular expression."""
        return self._regexes

    def preferred_assignor(self) -> str | None:
        """What most members ask for; of two that as many ask for Kafka takes `uniform`, and so do we."""
        return max(sorted(self._assignors, reverse=True), key=self._assignors.__getitem__, default=None)

    def supports_classic(self, protocol_type: str, names: Iterable[str]) -> bool:
        if protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        return any(self._classic_offers.get(name, 0) == self.classic_count for name in names)

    def all_classic_except(self, member_id: str) -> bool:
        member = self.members[member_id]
        return member.classic is None and self.classic_count == len(self.members) - 1

    def expiry_base(self) -> Callable[[Committed], int] | None:
        return lambda offset: offset.commit_timestamp

    # Checks; each raises GroupError

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        transactional: bool,
        version: int,
        partitions: Iterable[PartitionKey],
    ) -> None:
        if epoch < 0 and not self.members:
            return
        if transactional and epoch == -1 and not member_id and instance_id is None:
            return
        member = self.member(member_id)
        if not transactional and member.classic is None and version < 9:
            raise GroupError(ErrorCode.UNSUPPORTED_VERSION)
        if epoch == member.epoch:
            return
        # A member may commit with an epoch it has just left, as long as the partition was its own then
        # and still is (KIP-1251): its commit and its heartbeat travel separately.
        if epoch < member.epoch and all(
            (assigned := member.assignment_epoch(topic_id, partition)) is not None and epoch >= assigned
            for topic_id, partition in partitions
        ):
            return
        stale = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
        raise GroupError(stale, f"The epoch {epoch} does not match the member epoch {member.epoch}.")

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        if member_id is None and epoch < 0:
            return
        member = self.member(member_id or "")
        if epoch != member.epoch:
            classic = member.classic is not None
            raise GroupError(ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH)

    def check_offset_delete(self) -> None:
        """Always allowed; topics that are subscribed to are refused one by one."""

    def check_delete(self) -> None:
        if self.members:
            raise GroupError(ErrorCode.NON_EMPTY_GROUP)

    # Changes

    def put_member(self, member: Member) -> None:
        old = self.members.get(member.id)
        self.members[member.id] = member
        if old is not None:
            self._count(old, -1)
            if old.instance_id != member.instance_id:
                self._release_instance(old)
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id

    def remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        self._release_instance(member)

    def _release_instance(self, member: Member) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.id:
            del self.static_members[member.instance_id]

    def _count(self, member: Member, change: int) -> None:
        for name in member.topics:
            _add(self._names, name, change)
        if member.regex:
            _add(self._regexes, member.regex, change)
        if member.assignor is not None:
            _add(self._assignors, member.assignor, change)
        if member.classic is not None:
            self.classic_count += change
            for name in {name for name, _ in member.classic.protocols}:
                _add(self._classic_offers, name, change)
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                self._own(member.id, topic_id, partitions, held=change > 0)

    def _own(self, member_id: str, topic_id: bytes, partitions: Iterable[int], *, held: bool) -> None:
        owners = self._owners.setdefault(topic_id, {})
        for partition in partitions:
            if held:
                # A record says so, and records are what happened; while a log is loaded, the record that
                # frees a partition may have been compacted away ahead of this one.
                owners[partition] = member_id
            elif owners.get(partition) == member_id:
                del owners[partition]
        if not owners:
            del self._owners[topic_id]


def _add(counts: dict[str, int], key: str, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]
