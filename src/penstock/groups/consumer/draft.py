"""A change to one group of the consumer protocol, decided record by record and made all at once.

The first record copies the group. The copy takes the changes, and later decisions see them; the group itself
stays as it was. An error on the way throws the draft away. `commit` puts the copy in the group's place and
leaves the original with the journal, which goes back to it if the write fails. A draft with a record that is
too large for the log is refused, and leaves all as it was.
"""

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.records import replay
from penstock.groups.core import Context, TypedRecord, encoded
from penstock.groups.records import GroupMetadataKey
from penstock.groups.table import Group
from penstock.shards.journal import Durable, Failed
from penstock.wire.errors import ErrorCode


class Draft:
    __slots__ = ("_before", "_context", "_table", "group_id", "records")

    def __init__(self, context: Context, group_id: str) -> None:
        self._context = context
        self._before = context.groups.get(group_id)
        self._table: dict[str, Group] = {} if self._before is None else {group_id: self._before}
        self.group_id = group_id
        self.records: list[TypedRecord] = []

    @property
    def group(self) -> ConsumerGroup:
        """As the records so far make it. There must be one."""
        group = self._table[self.group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def emit(self, *records: TypedRecord) -> None:
        if not self.records and records and isinstance(self._before, ConsumerGroup):
            self._table[self.group_id] = self._before.copy()
        for key, value in records:
            replay(self._table, key, value)
            self.records.append((key, value))

    def drop_classic(self, group: ClassicGroup) -> None:
        """Make room for the records of a consumer group."""
        del self._table[self.group_id]
        if group.stored:
            self.records.append((GroupMetadataKey(group=self.group_id), None))

    def start(self, group: ConsumerGroup) -> None:
        """There is no group by this name: decide about this one, which the records will make."""
        assert self.group_id not in self._table
        self._table[self.group_id] = group

    def become(self, group: ClassicGroup, record: TypedRecord) -> None:
        """From here on the group is this classic one, which keeps state that no record has."""
        self._table[self.group_id] = group
        self.records.append(record)

    @property
    def fits(self) -> bool:
        """Whether the log takes it."""
        return self._context.journal.takes(encoded(self.records))

    def commit(self, durable: Durable, failed: Failed) -> None:
        """Make the change. With no record there is none, and `durable` runs once the group is durable."""
        journal = self._context.journal
        if not self.records:
            if journal.changes(self.group_id):
                journal.then(durable, failed)
            else:
                durable()
            return
        before = self._before
        records = encoded(self.records)
        if not journal.takes(records):
            failed(ErrorCode.MESSAGE_TOO_LARGE)
            if before is not None:
                self._context.watch_again(before)
            return
        journal.remember(self.group_id, lambda: before)
        after = self._table.get(self.group_id)
        if after is None:
            self._context.groups.pop(self.group_id, None)
        else:
            self._context.groups[self.group_id] = after
        journal.append(records, durable, failed)
