"""One partition of `__consumer_offsets`: all groups in it, and everything that can happen to them.

Each method is an event. It takes `now`, changes the state, and returns `Effects`; nothing here waits, reads
a clock or touches storage. The caller keeps four promises: records are loaded in the order of the log
before any request; `durable` or `failed` is reported for each batch before time moves on to the next; a
ticket names one waiting request; and a shard that failed or lost its partition is thrown away.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Set

from penstock.groups.classic.group import ClassicGroup, load_classic
from penstock.groups.classic.joining import OFFER_BYTES_MAX, ClassicJoin, Join, join_refused
from penstock.groups.classic.syncing import ClassicSync
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.heartbeat import ConsumerHeartbeat, heartbeat_refused
from penstock.groups.consumer.records import replay
from penstock.groups.core import Client, Context, GroupError, ignore, nothing
from penstock.groups.describe import (
    Described,
    described_classic,
    described_consumer,
    listed,
)
from penstock.groups.memory import MemberMemory
from penstock.groups.migration import Migration
from penstock.groups.mixed import MixedGroup
from penstock.groups.offsets.committed import NO_PRODUCER, Offsets, TopicOffsets
from penstock.groups.offsets.requests import OffsetRequests, commit_refused, txn_commit_refused
from penstock.groups.offsets.writing import OffsetWriting
from penstock.groups.records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from penstock.groups.records import read_record as parse_record
from penstock.groups.removing import Removal
from penstock.groups.table import Group
from penstock.log.guards import Guard
from penstock.metadata.image import ClusterImage
from penstock.settings.groups import GroupSettings
from penstock.shards.shard import Effects, Now, Ticket, error_after_append
from penstock.wire.api.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from penstock.wire.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.api.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from penstock.wire.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.api.join_group import JoinGroupRequest
from penstock.wire.api.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from penstock.wire.api.list_groups import ListedGroup
from penstock.wire.api.offset_commit import OffsetCommitRequest
from penstock.wire.api.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from penstock.wire.api.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from penstock.wire.api.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.api.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ApiMessage


class GroupShard:
    __slots__ = (
        "_c",
        "_consumer",
        "_join",
        "_migration",
        "_mixed",
        "_offsets",
        "_removal",
        "_sync",
        "_writing",
    )

    def __init__(
        self,
        settings: GroupSettings,
        image: ClusterImage,
        new_id: Callable[[], str],
        memory: MemberMemory | None = None,
    ) -> None:
        """`memory`: that of the broker, which its shards share; None: this one has its own."""
        shared = MemberMemory(self.kept_bytes) if memory is None else memory
        self._c = Context(settings, image, new_id, Offsets(), shared)
        self._join = ClassicJoin(self._c)
        self._sync = ClassicSync(self._c, self._join)
        self._migration = Migration(self._c, self._join)
        self._consumer = ConsumerHeartbeat(self._c, self._migration)
        self._mixed = MixedGroup(self._c, self._consumer, self._migration)
        self._writing = OffsetWriting(self._c)
        self._offsets = OffsetRequests(self._c, self._join, self._writing)
        self._removal = Removal(self._c, self._writing)
        self._c.watch_again = self._watch_again

    # Load

    def load(self, key: Buffer, value: Buffer | None, producer_id: int = NO_PRODUCER) -> None:
        """One record of the log. `producer_id` is that of its batch if the batch is transactional."""
        found = parse_record(key, value)
        if found is None:
            return
        match found:
            case OffsetCommitKey() as offset_key, (OffsetCommitValue() | None) as offset_value:
                self._writing.apply(offset_key, offset_value, producer_id)
            case GroupMetadataKey(group=group_id), GroupMetadataValue() as group_value:
                self._c.groups[group_id] = load_classic(group_id, group_value)
            case GroupMetadataKey(group=group_id), None:
                self._load_classic_tombstone(group_id)
            case other_key, other_value:
                replay(self._c.groups, other_key, other_value)

    def _load_classic_tombstone(self, group_id: str) -> None:
        if isinstance(self._c.groups.get(group_id), ClassicGroup):
            del self._c.groups[group_id]
        self._writing.keep_owner(group_id)

    def load_marker(self, producer_id: int, *, committed: bool) -> None:
        """The end of a transaction."""
        self._c.offsets.end_transaction(producer_id, committed=committed)

    def loaded(self, now: Now) -> Effects:
        """The log has been read to its end: begin to serve."""
        self._c.now = now
        for group_id in list(self._c.offsets.groups()):
            self._writing.keep_owner(group_id)
        for group_id, known in list(self._c.groups.items()):
            # It was there for offsets that have since gone.
            unused = isinstance(known, ClassicGroup) and not known.stored
            if unused and not self._c.offsets.has_any(group_id):
                del self._c.groups[group_id]
        for group in list(self._c.groups.values()):
            self._restore_timers(group)
        self._writing.remove(self._writing.of_missing_topics())
        self._removal.schedule_expiry()
        return self._effects()

    def _restore_timers(self, group: Group) -> None:
        if isinstance(group, ClassicGroup):
            self._join.restore_timers(group)
        else:
            self._consumer.restore_timers(group)

    def _watch_again(self, group: Group) -> None:
        if isinstance(group, ConsumerGroup):
            self._consumer.watch_again(group)

    # Classic protocol

    def join_group(
        self, now: Now, ticket: Ticket, request: JoinGroupRequest, version: int, client: Client
    ) -> Effects:
        self._c.now = now
        try:
            self._join_group(Join(request, version, client, ticket))
        except GroupError as error:
            self._c.answer(ticket, join_refused(error.code, request.member_id))
        return self._effects()

    def _join_group(self, join: Join) -> None:
        request = join.request
        settings = self._c.settings
        if not request.group_id:
            raise GroupError(ErrorCode.INVALID_GROUP_ID)
        shortest, longest = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            raise GroupError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if join.size > OFFER_BYTES_MAX:
            raise GroupError(ErrorCode.MESSAGE_TOO_LARGE)
        group = self._c.groups.get(request.group_id)
        present = None if group is None else group.members.get(request.member_id)
        self._c.keep(join.kept_bytes - (0 if present is None else present.kept_bytes))
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return self._mixed.join(group, join)
            self._removal.delete(group, nothing, ignore)
        return self._join.join(join)

    def sync_group(self, now: Now, ticket: Ticket, request: SyncGroupRequest) -> Effects:
        self._c.now = now
        try:
            group = self._named(request.group_id)
            self._c.keep(sum(len(a.assignment) for a in request.assignments))
            if isinstance(group, ClassicGroup):
                self._sync.sync(group, request, ticket)
            else:
                self._mixed.sync(group, request, ticket)
        except GroupError as error:
            self._c.answer(ticket, SyncGroupResponse(error_code=error.code))
        return self._effects()

    def heartbeat(self, now: Now, ticket: Ticket, request: HeartbeatRequest) -> Effects:
        self._c.now = now
        try:
            group = self._named(request.group_id)
            if isinstance(group, ClassicGroup):
                self._c.answer(ticket, self._sync.heartbeat(group, request))
            else:
                self._c.answer(ticket, self._mixed.heartbeat(group, request))
        except GroupError as error:
            self._c.answer(ticket, HeartbeatResponse(error_code=error.code))
        return self._effects()

    def leave_group(self, now: Now, ticket: Ticket, request: LeaveGroupRequest) -> Effects:
        self._c.now = now
        if not request.group_id:
            self._c.answer(ticket, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
            return self._effects()
        group = self._c.groups.get(request.group_id)
        if group is None:
            unknown = [
                MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for member in request.members
            ]
            self._c.answer(ticket, LeaveGroupResponse(members=unknown))
        elif isinstance(group, ClassicGroup):
            self._sync.leave(group, request, ticket)
        else:
            self._mixed.leave(group, request, ticket)
        return self._effects()

    def _named(self, group_id: str) -> Group:
        if not group_id:
            raise GroupError(ErrorCode.INVALID_GROUP_ID)
        group = self._c.groups.get(group_id)
        if group is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # Consumer protocol

    def consumer_group_heartbeat(
        self,
        now: Now,
        ticket: Ticket,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client: Client,
        sees: Callable[[str], bool] = lambda _topic: True,
    ) -> Effects:
        """`sees`: the topics that the sender may know of. A regular expression finds no others."""
        self._c.now = now
        try:
            self._consumer.heartbeat(request, version, client, ticket, sees)
        except GroupError as error:
            self._c.answer(ticket, heartbeat_refused(error.code, error.message))
        return self._effects()

    # Offsets

    def commit_offsets(self, now: Now, ticket: Ticket, request: OffsetCommitRequest, version: int) -> Effects:
        self._c.now = now
        try:
            self._offsets.commit(request, version, ticket)
        except GroupError as error:
            self._c.answer(ticket, commit_refused(request, error.code))
        return self._effects()

    def commit_offsets_in_transaction(
        self, now: Now, ticket: Ticket, request: TxnOffsetCommitRequest, guard: Guard | None = None
    ) -> Effects:
        self._c.now = now
        try:
            self._offsets.commit_in_transaction(request, ticket, guard)
        except GroupError as error:
            self._c.answer(ticket, txn_commit_refused(request, error.code))
        return self._effects()

    def transaction_ended(self, now: Now, producer_id: int, *, committed: bool) -> Effects:
        """The marker of a transaction is durable in this partition, after all that was reported durable
        before."""
        self._c.now = now
        # Commits that did not get into the log before the marker are no part of the transaction, and must not
        # become part of the next. In nearly all cases the marker's epoch shuts their sender out.
        for _, failed in self._c.journal.refuse(producer_id):
            failed(ErrorCode.INVALID_PRODUCER_EPOCH)
        self._writing.end_transaction(producer_id, committed=committed)
        return self._effects()

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """Changes nothing and never waits."""
        try:
            return self._offsets.fetch(request, require_stable=require_stable)
        except GroupError as error:
            return OffsetFetchResponseGroup(group_id=request.group_id, error_code=error.code)

    def delete_offsets(self, now: Now, ticket: Ticket, request: OffsetDeleteRequest) -> Effects:
        self._c.now = now
        try:
            if not request.group_id:
                raise GroupError(ErrorCode.INVALID_GROUP_ID)
            self._offsets.delete(request, ticket)
        except GroupError as error:
            self._c.answer(ticket, OffsetDeleteResponse(error_code=error.code))
        return self._effects()

    # Groups as a whole

    def list_groups(self, states: Set[str], types: Set[str]) -> list[ListedGroup]:
        """Changes nothing and never waits. Filters are `describe.words`, and empty ones let all pass."""
        names = self._c.groups.keys() | self._c.journal.changed()
        groups = (self._durable(group_id) for group_id in sorted(names))
        return [
            listed(group)
            for group in groups
            if group is not None
            and (not states or group.state_name.lower() in states)
            and (not types or group.type in types)
        ]

    def census(self) -> Iterator[tuple[str, str, int, TopicOffsets]]:
        """Each group: its name, its state, how many members it has, and the offsets that it committed."""
        for group_id, group in self._c.groups.items():
            yield group_id, group.state_name, len(group.members), self._c.offsets.of_group(group_id)

    def describe_group(self, group_id: str, version: int) -> Described:
        return described_classic(group_id, self._durable(group_id), version)

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        return described_consumer(self._c, group_id, self._durable(group_id))

    def _durable(self, group_id: str) -> Group | None:
        return self._c.journal.durable_form(group_id, self._c.groups.get(group_id))

    def delete_groups(self, now: Now, ticket: Ticket, group_ids: Iterable[str]) -> Effects:
        self._c.now = now
        results: list[DeletableGroupResult] = []
        for group_id in group_ids:
            result = DeletableGroupResult(group_id=group_id)
            results.append(result)
            try:
                self._removal.delete_group(group_id, result)
            except GroupError as error:
                result.error_code = error.code
        response = DeleteGroupsResponse(results=results)
        if self._c.journal.is_idle:
            self._c.answer(ticket, response)
        else:
            self._c.journal.then(
                lambda: self._c.answer(ticket, response), lambda _: self._c.answer(ticket, response)
            )
        return self._effects()

    def kept_bytes(self) -> int:
        """About how much memory the members of all groups take."""
        return sum(group.kept_bytes for group in self._c.groups.values())

    # Time

    def tick(self, now: Now) -> Effects:
        self._c.now = now
        while (action := self._c.timers.pop_due(now.ms)) is not None:
            action()
        return self._effects()

    # The world outside

    def set_settings(self, settings: GroupSettings) -> None:
        """What was scheduled under the old ones stays as it is."""
        self._c.settings = settings

    def set_topic_bytes_max(self, size: int) -> None:
        """`max.message.bytes` of the offsets topic."""
        self._c.journal.topic_bytes_max = size

    def set_image(self, image: ClusterImage) -> None:
        """Before `loaded` only; afterwards, `metadata_changed` says what is different."""
        self._c.image = image

    def metadata_changed(
        self, now: Now, image: ClusterImage, changed: Collection[str], *, removed: bool
    ) -> Effects:
        """A newer image. `changed` are topics that came, went or grew; `removed`: some went or came anew."""
        self._c.now = now
        self._c.image = image
        if changed:
            for group in self._c.groups.values():
                if not isinstance(group, ConsumerGroup):
                    continue
                group.regex_wanted = group.regex_wanted or bool(group.regexes)
                if any(group.is_subscribed_to(topic) for topic in changed):
                    group.refresh_wanted = True
        if removed:
            self._writing.remove(self._writing.of_missing_topics())
        return self._effects()

    def durable(self, now: Now) -> Effects:
        """The batch that was handed out last is on storage to stay."""
        self._c.now = now
        for done, _ in self._c.journal.finish():
            done()
        return self._effects()

    def failed(self, now: Now, code: ErrorCode) -> Effects:
        """The batch that was handed out last is not on storage, and will not be."""
        self._c.now = now
        before, waiting = self._c.journal.fail()
        for group_id, group in before.items():
            self._take_back(group_id, group, error_after_append(code))
        for _, failed in waiting:
            failed(code)
        return self._effects()

    def _take_back(self, group_id: str, group: Group | None, code: ErrorCode) -> None:
        present = self._c.groups.pop(group_id, None)
        if isinstance(present, ClassicGroup) and present is not group:
            self._migration.refuse_parked(present, code)
        if group is None:
            self._writing.keep_owner(group_id)
            return
        self._c.groups[group_id] = group
        if isinstance(group, ConsumerGroup):
            group.refresh_wanted = group.regex_wanted = True
        self._restore_timers(group)

    def unload(self, now: Now) -> Effects:
        """The partition has another leader: everybody who waits is sent there."""
        self._c.now = now
        _, waiting = self._c.journal.give_up()
        for _, failed in waiting:
            failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for group in self._c.groups.values():
            if isinstance(group, ClassicGroup):
                self._migration.refuse_parked(group, ErrorCode.NOT_COORDINATOR)
        return Effects(self._taken_answers(), None, None)

    def _effects(self) -> Effects:
        return Effects(self._taken_answers(), self._c.journal.take(), self._c.timers.next_deadline())

    def _taken_answers(self) -> list[tuple[Ticket, ApiMessage]]:
        answers = self._c.answers
        self._c.answers = []
        return answers
