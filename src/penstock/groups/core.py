"""The state that every part of a shard of groups shares: its clock, its timers, its journal and its answers.

A shard here is one partition of `__consumer_offsets`. `shards/shard.py` says what shards are in general.

**State ahead of storage.** Offsets and classic groups change only when their records are durable. A group of
the consumer protocol *is* its records, so it changes at once: else a second member would wait a whole round
trip to storage for the first. The journal keeps the group as it was before the batch, puts it back if the
batch fails, and holds back every answer that could show the unwritten state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.records import Key, Value, to_record
from penstock.shards.journal import Journal
from penstock.shards.shard import Now, Record, Ticket, error_after_append
from penstock.shards.timers import Timers
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.groups.memory import MemberMemory
    from penstock.groups.offsets.committed import Offsets
    from penstock.groups.table import Group
    from penstock.metadata.image import ClusterImage
    from penstock.settings.groups import GroupSettings
    from penstock.wire.schema import ApiMessage


class Client(NamedTuple):
    """The sender of a request, as far as groups remember it."""

    id: str = ""
    host: str = ""


class GroupError(Exception):
    """A request is refused with this code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


class Context:
    """The parts of a shard, and the event that it is working on."""

    __slots__ = (
        "answers",
        "groups",
        "image",
        "journal",
        "memory",
        "new_id",
        "now",
        "offsets",
        "settings",
        "timers",
        "watch_again",
    )

    def __init__(
        self,
        settings: GroupSettings,
        image: ClusterImage,
        new_id: Callable[[], str],
        offsets: Offsets,
        memory: MemberMemory,
    ) -> None:
        self.settings = settings
        self.image = image
        self.new_id = new_id
        self.offsets = offsets
        self.memory = memory
        self.groups: dict[str, Group] = {}
        self.timers = Timers()
        self.journal: Journal[Group] = Journal(settings.offsets_batch_bytes_max)
        self.now = Now(0, 0)
        self.answers: list[tuple[Ticket, ApiMessage]] = []
        self.watch_again: Callable[[Group], None] = _unwatched
        """A change to this group was not made: set those of its timers that the change would have ended."""

    def answer(self, ticket: Ticket, response: ApiMessage) -> None:
        self.answers.append((ticket, response))

    def answer_written(
        self,
        group_id: str,
        ticket: Ticket,
        response: ApiMessage,
        refusal: Callable[[ErrorCode], ApiMessage],
    ) -> None:
        """Answer from a group's state: at once, or when the writes that made that state are durable."""
        if not self.journal.changes(group_id):
            self.answer(ticket, response)
            return
        self.journal.then(
            lambda: self.answer(ticket, response),
            lambda code: self.answer(ticket, refusal(error_after_append(code))),
        )

    def keep(self, size: int) -> None:
        """A request brings so much to stay. GroupError if that is too much for this broker."""
        if size > 0 and not self.memory.admits(size, self.now.ms):
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def after(self, timeout_ms: int) -> int:
        return self.now.ms + timeout_ms


def nothing() -> None:
    """Nobody waits for this write."""


def ignore(_code: ErrorCode) -> None:
    """Nobody can be told that this write failed; what it would have said is said again later."""


def _unwatched(_group: Group) -> None:
    """Nobody has timers yet."""


TypedRecord = tuple[Key, Value | None]


def encoded(records: Sequence[TypedRecord]) -> list[Record]:
    return [to_record(key, value) for key, value in records]
