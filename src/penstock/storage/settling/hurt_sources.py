"""Which bytes are not copied, because they are hurt where they lie.

What they are copied from is deleted afterwards, and then nobody can bring back what was there. So an object
that is hurt is neither merged nor moved: its pieces stay where they are, until they go by retention or are
repaired. A write-ahead log cannot stay. Its hurt bytes have a moment to become whole again; then they are
copied as they are, and readers say so, there as here.
"""

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.log.manifest import SegmentRef

LOG_SECONDS = 10.0
"""How long settling waits for logs that are hurt. It is tried again within this time."""
OBJECT_SECONDS = 600.0
"""How long an object is believed to be hurt."""
_OBJECTS_MAX = 10_000


class HurtSources:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = self._last = clock.monotonic() - 2 * LOG_SECONDS
        """When a log was first and last found hurt, one time after the other."""
        self._objects: dict[str, float] = {}
        """Until when they are left alone."""

    def give_up(self, _log: str) -> bool:
        """Called when a log is found hurt: whether its bytes are copied all the same. In any thread."""
        now = self._clock.monotonic()
        if now - self._last >= 2 * LOG_SECONDS:
            self._since = now
        self._last = now
        return now - self._since >= LOG_SECONDS

    def leave_alone(self, key: str) -> None:
        """An object was found hurt."""
        if len(self._objects) >= _OBJECTS_MAX:
            self._objects.clear()
        self._objects[key] = self._clock.monotonic() + OBJECT_SECONDS

    def after(self, segments: Sequence[SegmentRef]) -> int:
        """How many segments there are up to the last one that is left alone."""
        if not self._objects:
            return 0
        return next((at for at in range(len(segments), 0, -1) if self.is_hurt(segments[at - 1])), 0)

    def is_hurt(self, segment: SegmentRef) -> bool:
        """Whether this is left alone."""
        return self._objects.get(segment.key, 0.0) > self._clock.monotonic()
