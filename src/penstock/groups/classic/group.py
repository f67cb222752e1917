"""A group of the classic protocol: its members and its five states.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
               ^   |  (members join)      | (leader syncs)   |
               |   +-> Empty (all left)   |                  |
               +--------------------------+------------------+

This module holds the state and answers questions about it. Only `joining` and `syncing` move it from one
state to the next.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from penstock.groups.classic.embedded import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from penstock.groups.core import Client, GroupError
from penstock.groups.memory import MEMBER_BYTES, TEXT_BYTES
from penstock.groups.offsets.committed import Committed
from penstock.groups.records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from penstock.shards.shard import Ticket
from penstock.wire.api.describe_groups import DescribedGroupMember
from penstock.wire.api.join_group import JoinGroupRequestProtocol, JoinGroupResponseMember
from penstock.wire.errors import ErrorCode


class State(StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_PREVIOUS: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset((State.PREPARING,)),
    State.PREPARING: frozenset((State.STABLE, State.COMPLETING, State.EMPTY)),
    State.COMPLETING: frozenset((State.PREPARING,)),
    State.STABLE: frozenset((State.COMPLETING,)),
    State.DEAD: frozenset(State),
}

Protocols = tuple[tuple[str, bytes], ...]
"""What a member offers, in its order of preference: (name, opaque metadata)."""


def protocols_of(offered: Iterable[JoinGroupRequestProtocol]) -> Protocols:
    return tuple((p.name, bytes(p.metadata)) for p in offered)


def offered_bytes(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) + 2 * TEXT_BYTES for name, metadata in protocols)


class ClassicMember(msgspec.Struct, eq=False):
    id: str
    instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """It has not seen an answer to its first JoinGroup, so it cannot heartbeat yet."""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @property
    def kept_bytes(self) -> int:
        """About how much memory it takes."""
        names = len(self.id) + len(self.instance_id or "") + len(self.client.id)
        return MEMBER_BYTES + names + offered_bytes(self.protocols) + len(self.assignment)

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def satisfies_heartbeat(self) -> bool:
        """A member whose request is parked here is alive; only a new one may expire while it waits."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str | None:
        for name, _ in self.protocols:
            if name in candidates:
                return name
        return None

    def describe(self, protocol: str | None) -> DescribedGroupMember:
        """`protocol` is None unless the group is stable: only then has its metadata a meaning."""
        return DescribedGroupMember(
            member_id=self.id,
            group_instance_id=self.instance_id,
            client_id=self.client.id,
            client_host=self.client.host,
            member_metadata=b"" if protocol is None else self.metadata(protocol),
            member_assignment=self.assignment,
        )


class ClassicGroup:
    __slots__ = (
        "_offers",
        "generation",
        "group_id",
        "joined",
        "leader",
        "members",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "previous_state",
        "protocol",
        "protocol_type",
        "state",
        "state_since_ms",
        "static_members",
        "stored",
        "subscribed",
    )

    type = "classic"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.previous_state = State.DEAD
        self.state_since_ms: int | None = None
        """Wall clock: offsets of an empty group expire from then on."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        self.joined: set[str] = set()
        """Members whose JoinGroup is parked here."""
        self._offers: dict[str, int] = {}
        """How many members offer each protocol. Counted, because joins of large groups ask all the time."""
        self.pending_join: set[str] = set()
        """Ids that were handed out and have not come back with a JoinGroup."""
        self.pending_sync: set[str] = set()
        self.new_member_added = False
        self.subscribed: frozenset[str] | None = None
        """Topics that consumers subscribe to; None if that cannot be known."""
        self.stored = False
        """The log holds a record of this group, or soon will: it takes a tombstone to remove."""

    # Questions

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def kept_bytes(self) -> int:
        pending = sum(MEMBER_BYTES + len(member_id) for member_id in self.pending_join)
        return pending + sum(member.kept_bytes for member in self.members.values())

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def listed_protocol_type(self) -> str:
        return self.protocol_type or ""

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def can_rebalance(self) -> bool:
        return self.state in _PREVIOUS[State.PREPARING]

    @property
    def all_joined(self) -> bool:
        return not self.pending_join and len(self.joined) == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether somebody who offers these could be a member: a protocol that all have in common remains."""
        offered = set(names)
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(offered)
        if not self.members:
            # All left while a rebalance waited for somebody who has only an id: anything is in common.
            return self.protocol_type == protocol_type and bool(offered)
        return self.protocol_type == protocol_type and bool(offered & self._common_protocols())

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all have in common."""
        candidates = self._common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            assert choice is not None, "a member was let in without a protocol in common"
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _common_protocols(self) -> set[str]:
        everybody = len(self.members)
        return {name for name, count in self._offers.items() if count == everybody}

    def is_subscribed_to(self, topic: str) -> bool:
        return self.is_consumer if self.subscribed is None else topic in self.subscribed

    def expiry_base(self) -> Callable[[Committed], int] | None:
        """From when the retention of an offset counts; None: nothing of this group expires now."""
        if self.protocol_type is None:
            return lambda offset: offset.commit_timestamp
        if self.state is State.EMPTY:
            since = self.state_since_ms
            return lambda offset: offset.commit_timestamp if since is None else since
        if self.state is State.STABLE and self.is_consumer and self.subscribed is not None:
            return lambda offset: offset.commit_timestamp
        return None

    # Checks; each raises GroupError

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known != member_id:
                raise GroupError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> None:
        if generation < 0 and self.state is State.EMPTY:
            return  # A simple consumer, or an administrator resetting offsets.
        if generation >= 0 or member_id or instance_id is not None:
            self.check_member(member_id, instance_id)
            if generation != self.generation:
                raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is State.COMPLETING:
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_delete(self) -> None:
        if self.state is not State.EMPTY and not self.is_consumer:
            raise GroupError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if self.state is not State.EMPTY:
            raise GroupError(ErrorCode.NON_EMPTY_GROUP)

    # Changes

    def move_to(self, state: State, wall_ms: int) -> None:
        assert self.state in _PREVIOUS[state], f"{self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_since_ms = wall_ms

    def add(self, member: ClassicMember) -> None:
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        self._count_offers(member.protocols, 1)
        self.pending_join.discard(member.id)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_offers(member.protocols, -1)
            self.joined.discard(member_id)
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_join.discard(member_id)
        self.pending_sync.discard(member_id)

    def update(self, member: ClassicMember, protocols: Protocols, rebalance_ms: int, session_ms: int) -> None:
        self._count_offers(member.protocols, -1)
        self._count_offers(protocols, 1)
        member.protocols = protocols
        member.rebalance_timeout_ms = rebalance_ms
        member.session_timeout_ms = session_ms

    def _count_offers(self, protocols: Protocols, change: int) -> None:
        for name in {name for name, _ in protocols}:
            count = self._offers.get(name, 0) + change
            if count:
                self._offers[name] = count
            else:
                del self._offers[name]

    def park_join(self, member: ClassicMember, ticket: Ticket) -> Ticket | None:
        """Keep a JoinGroup until the rebalance is complete; the one it replaces, if any, is given back."""
        replaced = member.join_ticket
        member.join_ticket = ticket
        self.joined.add(member.id)
        return replaced

    def unpark_join(self, member: ClassicMember) -> Ticket | None:
        ticket = member.join_ticket
        member.join_ticket = None
        self.joined.discard(member.id)
        return ticket

    def rename_static(self, instance_id: str, old_id: str, new_id: str) -> ClassicMember:
        """The instance came back under a new member id: same place, same assignment.

        Nothing of the old id may be parked: whoever still waits under it has been fenced.
        """
        old = self.members[old_id]
        assert old.join_ticket is None and old.sync_ticket is None
        new = msgspec.structs.replace(old, id=new_id)
        self.members = {
            (new_id if member_id == old_id else member_id): (new if member_id == old_id else member)
            for member_id, member in self.members.items()
        }
        if self.leader == old_id:
            self.leader = new_id
        self.static_members[instance_id] = new_id
        return new

    def elect_joined_leader(self) -> bool:
        """Keep a leader that has rejoined, else take another that has; False if nobody has."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_ticket is not None:
            return True
        for member in self.members.values():
            if member.join_ticket is not None:
                self.leader = member.id
                return True
        return False

    def start_generation(self, wall_ms: int) -> None:
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed = self.compute_subscribed()
        self.move_to(State.COMPLETING if self.members else State.EMPTY, wall_ms)
        self.pending_sync.clear()

    def compute_subscribed(self) -> frozenset[str] | None:
        if not self.is_consumer:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        return subscribed_topics(m.metadata(self.protocol) for m in self.members.values())

    # Forms

    def described_to_leader(self) -> list[JoinGroupResponseMember]:
        return [
            JoinGroupResponseMember(
                member_id=m.id, group_instance_id=m.instance_id, metadata=m.metadata(self.protocol)
            )
            for m in self.members.values()
        ]

    def key(self) -> GroupMetadataKey:
        return GroupMetadataKey(group=self.group_id)

    def value(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        members: Sequence[ClassicMember] = list(self.members.values())
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=-1 if self.state_since_ms is None else self.state_since_ms,
            members=[
                MemberMetadata(
                    member_id=m.id,
                    group_instance_id=m.instance_id,
                    client_id=m.client.id,
                    client_host=m.client.host,
                    rebalance_timeout=m.rebalance_timeout_ms,
                    session_timeout=m.session_timeout_ms,
                    subscription=m.metadata(self.protocol),
                    assignment=assignments.get(m.id, b""),
                )
                for m in members
            ],
        )


def load_classic(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """The group as its newest record has it: stable with its members, or empty."""
    group = ClassicGroup(group_id)
    group.stored = True
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol = value.protocol
    for m in value.members:
        group.add(
            ClassicMember(
                id=m.member_id,
                instance_id=m.group_instance_id,
                client=Client(m.client_id, m.client_host),
                rebalance_timeout_ms=m.session_timeout if m.rebalance_timeout == -1 else m.rebalance_timeout,
                session_timeout_ms=m.session_timeout,
                protocol_type=value.protocol_type,
                protocols=((value.protocol or "", bytes(m.subscription)),),
                assignment=bytes(m.assignment),
            )
        )
    group.leader = value.leader if value.leader in group.members else group.leader
    group.state = State.STABLE if group.members else State.EMPTY
    group.state_since_ms = None if value.current_state_timestamp == -1 else value.current_state_timestamp
    group.subscribed = group.compute_subscribed()
    return group
