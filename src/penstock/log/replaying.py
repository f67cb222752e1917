"""Takes over a partition from its logs, batch after batch, and passes over damage.

An acknowledged record is in the manifest or in a log, and offsets join without a gap. So damage shows as a
gap: if a later batch begins beyond the end of those before it, exactly the offsets between are hurt. If no
batch follows a damaged flush, the partition may have had records in it or not. Unless that can be excluded,
the offsets that they may have had are hurt as well: an acknowledged offset is never given again.

With durability=os a loss of power may take the end of a log that was not synced. Those records are not lost:
they were never promised. A gap that they leave is passed over, like a gap that compaction leaves. If nothing
follows, the partition ends there.
"""

from typing import NamedTuple

from penstock.log.manifest import HurtRange
from penstock.log.partition import PartitionLog
from penstock.log.salvage import FlushDamage
from penstock.wire.batch import BatchHeader

LOST_OFFSETS_MAX = 1 << 32
"""More records than were lost, where nothing tells how many: a flush takes some megabytes, and a batch
expands to so many that a hundred of the largest ones hold fewer."""


class Damaged(NamedTuple):
    """A flush that is lost in part."""

    flush: int
    damage: FlushDamage


class Replay:
    """Brings `log` forward. `hurt` are the lost ranges that it found, in order. `torn` are the offsets at
    which a loss of power left a gap."""

    def __init__(self, log: PartitionLog, log_start: int) -> None:
        """What lies below `log_start` was deleted, and may be missing."""
        self.hurt: list[HurtRange] = []
        self.torn: list[tuple[int, int]] = []
        self.log_start = log_start
        self._log = log
        self._doubt_end = 0
        """Damaged flushes may have held records of the partition up to here."""
        self._doubt = ""
        self._strays: dict[int, int] = {}
        """Batches of damaged flushes since: last offset by base offset."""
        self._after_torn = False
        """Whether a loss of power may explain a gap before the next batch."""

    def damaged(self, number: int, damage: FlushDamage) -> None:
        """A flush of the log comes next that is lost in part, and none of what was salvaged is the
        partition's. Of one that is torn some of it may be: this is told before and after each block."""
        if damage.torn:
            self._after_torn = True
            return
        start = end = self._log.next_offset
        for base, last in damage.strays:
            self._strays[base] = max(last, self._strays.get(base, last))
        while end in self._strays:
            end = self._strays[end] + 1
        if not damage.complete:
            end = max(end, start + LOST_OFFSETS_MAX)
        if end > start:
            self._doubt_end = max(self._doubt_end, end)
            self._doubt = self._doubt or f"flush {number} of a write-ahead log: {damage.reason}"

    def expects(self, base_offset: int, *, proven: bool = True) -> bool:
        """Whether a batch that begins so may come next: it leaves no gap above the log start, or one that is
        explained."""
        end = max(self._log.next_offset, self.log_start)
        return base_offset <= end or bool(self._doubt) or self._after_torn or not proven

    def takes(self, header: BatchHeader, control: bytes, time_ms: int, *, proven: bool = True) -> bool:
        """A batch comes next: whether it is beyond what is there, and was taken. One that is not `proven` to
        be the partition's is, if it goes on where the partition ends."""
        log = self._log
        if header.last_offset < log.next_offset:
            return False
        if header.base_offset < log.next_offset:
            self._lose(
                header.last_offset + 1, f"the batch at {header.base_offset} contradicts those before it"
            )
            return False
        if header.base_offset > log.next_offset:
            if not proven:
                self._doubt_end = max(self._doubt_end, header.last_offset + 1)
                self._doubt = self._doubt or "a flush of a write-ahead log is damaged"
                return False
            if self._after_torn and not self._doubt:
                self._skip(header.base_offset)
            else:
                self._lose(header.base_offset, self._doubt or "they are not in the store")
        self._doubt_end, self._doubt, self._after_torn = 0, "", False
        self._strays.clear()
        log.replay(header, control, time_ms)
        return True

    @property
    def in_doubt(self) -> bool:
        """Whether records may be lost behind the last batch."""
        return bool(self._doubt)

    @property
    def lost_at_end(self) -> HurtRange | None:
        """What is lost behind the last batch, if nothing comes any more."""
        start = max(self._log.next_offset, self.log_start)
        return HurtRange(start, self._doubt_end, self._doubt) if self._doubt_end > start else None

    def finish(self) -> None:
        """Nothing comes any more. A loss of power may have taken records that were deleted anyway: the
        partition ends no lower than it begins."""
        lost = self.lost_at_end
        if lost is not None:
            self._lose(lost.end, lost.reason)
        self._log.next_offset = max(self._log.next_offset, self.log_start)

    def _skip(self, end: int) -> None:
        start = max(self._log.next_offset, self.log_start)
        if end > start:
            self.torn.append((start, end))
        self._log.pass_over(end)

    def _lose(self, end: int, reason: str) -> None:
        start = max(self._log.next_offset, self.log_start)
        if end > start:
            self.hurt.append(HurtRange(start, end, reason))
            self._log.pass_over(end)
        self._log.next_offset = end
