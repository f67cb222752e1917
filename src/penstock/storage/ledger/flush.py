"""What one flush holds while it is under way: the batches of each partition, and whom to tell."""

from penstock.log.partition import Undo
from penstock.storage.partitions.answers import Staged
from penstock.storage.partitions.partition import Partition, Waiting
from penstock.wire.errors import ErrorCode


class Share:
    """The batches of one partition in one flush."""

    __slots__ = ("end_offset", "first_offset", "partition", "stable_offset", "staged", "undo", "waiting")

    def __init__(self, partition: Partition, waiting: list[Waiting]) -> None:
        self.partition = partition
        self.waiting = waiting
        """What it was made from, but for who was told that the time is over."""
        self.first_offset = partition.next_offset
        self.undo: list[Undo] = []
        self.staged: list[Staged] = []
        self.end_offset = self.first_offset
        self.stable_offset = self.first_offset


class Flush:
    __slots__ = ("began_ns", "duplicates", "number", "shares", "size", "stands_for")

    def __init__(self, number: int) -> None:
        self.number = number
        self.stands_for = 0
        """If it is timed: how many flushes this one counts as."""
        self.began_ns = 0
        self.shares: list[Share] = []
        self.duplicates: list[tuple[Partition, Staged, float]] = []
        """Batches that were in the log, or in a flush before this one: answered when this one is."""
        self.size = 0

    def answer(self, code: ErrorCode) -> None:
        """It was not written: tell everybody."""
        for share in self.shares:
            for _batch, _placed, done in share.staged:
                done(code)
        for _partition, (_batch, _placed, done), _until in self.duplicates:
            done(code)
