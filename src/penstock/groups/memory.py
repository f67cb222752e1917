"""How much of a broker's memory the members of its groups may take.

A member costs its sender one request in a session time-out, and stays in memory with all that it said of
itself. It takes no right but that to read a group, so a client could make as many as it likes. All groups
that a broker coordinates share one limit.

What arrives is added up, and nothing is subtracted: when the sum reaches the limit, the groups are counted as
they are then. So a group may be changed, fail and go in any way, and no change needs to know of this. What
exists is never removed. What is new is refused with a code that clients try again after. Large requests are
refused first, so that ordinary consumers come in while somebody fills the memory with large ones.

Committed offsets are not counted: they are data, as records are.
"""

from collections.abc import Callable

MEMBERS_BYTES_MAX = 256 << 20
"""A hundred thousand ordinary consumers take about half of it."""
SMALL_BYTES = 64 << 10
"""A request up to this size is let in until the limit is reached twice."""
COUNT_AGAIN_MS = 1_000
"""A count looks at every member, so there is so much time between two."""

MEMBER_BYTES = 1_200
"""A member without its texts: the objects, and its timer."""
TEXT_BYTES = 60
"""A text without its characters."""
PARTITION_BYTES = 150
"""A partition that is assigned to a member, in its target and in what it owns."""


class MemberMemory:
    __slots__ = ("_bytes_max", "_count", "_counted_at_ms", "_kept_bytes")

    def __init__(self, count: Callable[[], int], bytes_max: int = MEMBERS_BYTES_MAX) -> None:
        """`count`: how much all groups keep at this moment."""
        self._count = count
        self._bytes_max = bytes_max
        self._kept_bytes: int | None = None
        """At most: as counted, and all that arrived since. None: not counted yet."""
        self._counted_at_ms = 0

    def forget(self) -> None:
        """Groups came that were not let in here: those of a partition that was loaded."""
        self._kept_bytes = None

    def admits(self, size: int, now_ms: int) -> bool:
        """Whether so much more may be kept; if so it counts from now on."""
        limit = self._bytes_max if size > SMALL_BYTES else 2 * self._bytes_max
        kept = self._kept_bytes
        if kept is None or (kept + size > limit and now_ms - self._counted_at_ms >= COUNT_AGAIN_MS):
            kept = self._kept_bytes = self._count()
            self._counted_at_ms = now_ms
        if kept + size > limit:
            return False
        self._kept_bytes = kept + size
        return True
