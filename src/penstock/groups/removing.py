"""How groups go: an administrator deletes them, or their last offset expires and they are empty."""

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.consumer.draft import Draft
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import group_tombstones
from penstock.groups.core import Context, GroupError, encoded, ignore, nothing
from penstock.groups.offsets.writing import OffsetWriting
from penstock.groups.table import Group
from penstock.shards.journal import Durable, Failed
from penstock.shards.shard import error_after_append
from penstock.wire.api.delete_groups import DeletableGroupResult
from penstock.wire.errors import ErrorCode

_EXPIRY_SLICE = 200
"""Groups looked at in one go when offsets are checked for expiry; then others get their turn."""
_EXPIRY_PAUSE_MS = 5


class Removal:
    __slots__ = ("_c", "_writing")

    def __init__(self, context: Context, writing: OffsetWriting) -> None:
        self._c = context
        self._writing = writing

    def delete_group(self, group_id: str, result: DeletableGroupResult) -> None:
        group = self._c.groups.get(group_id)
        if group is None:
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_delete()
        if isinstance(group, ClassicGroup):
            # Those who have only been given an id hold nothing up; with the group it is gone.
            for member_id in list(group.pending_join):
                self._c.timers.cancel(("heartbeat", group_id, member_id))
                group.remove(member_id)

        def failed(code: ErrorCode) -> None:
            result.error_code = error_after_append(code)

        self._writing.remove(self._writing.tombstones(group_id))
        self.delete(group, nothing, failed)

    def delete(self, group: Group, durable: Durable, failed: Failed) -> None:
        """Remove an empty group; its offsets are somebody else's business."""
        journal = self._c.journal
        if isinstance(group, ConsumerGroup):
            draft = Draft(self._c, group.group_id)
            draft.emit(*group_tombstones(group))
            draft.commit(durable, failed)
            return

        def unforgotten(code: ErrorCode) -> None:
            group.stored = True
            failed(code)

        def forget() -> None:
            known = self._c.groups.get(group.group_id)
            if known is group and group.state is State.EMPTY and not group.pending_join:
                del self._c.groups[group.group_id]
                self._writing.keep_owner(group.group_id)
            durable()

        if group.stored:
            group.stored = False
            journal.append(encoded([(group.key(), None)]), forget, unforgotten)
        elif journal.is_idle:
            forget()
        else:
            journal.then(forget, failed)

    def schedule_expiry(self) -> None:
        self._c.timers.schedule(
            "expiry",
            self._c.after(self._c.settings.offsets_retention_check_interval_ms),
            lambda: self._expire(list(self._c.groups)),
        )

    def _expire(self, group_ids: list[str]) -> None:
        """Look at some groups now and at the rest a little later."""
        for group_id in group_ids[:_EXPIRY_SLICE]:
            group = self._c.groups.get(group_id)
            if group is None:
                continue
            records, was_last = self._writing.expired(group)
            self._writing.remove(records)
            waits = isinstance(group, ClassicGroup) and bool(group.pending_join)
            if was_last and group.is_empty and not waits:
                self.delete(group, nothing, ignore)
        rest = group_ids[_EXPIRY_SLICE:]
        if rest:
            self._c.timers.schedule("expiry", self._c.after(_EXPIRY_PAUSE_MS), lambda: self._expire(rest))
        else:
            self.schedule_expiry()
