"""Deadlines, cheap to push back.

Every heartbeat moves a deadline, so a move to a later time may cost no more than a dictionary write. The heap
keeps the old time. An entry that surfaces too early is put back at its true time.
"""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush

Action = Callable[[], None]

_DEAD_ENTRIES_MIN = 1_024
"""Below this many entries, cancelled ones are left for the heap to surface by itself."""


class _Timer:
    __slots__ = ("action", "deadline", "queued_at")

    def __init__(self, deadline: int, action: Action) -> None:
        self.deadline = deadline
        self.queued_at = deadline
        self.action = action


class Timers:
    """Named one-shot timers in milliseconds of a clock that never goes back."""

    __slots__ = ("_counter", "_heap", "_timers")

    def __init__(self) -> None:
        self._timers: dict[Hashable, _Timer] = {}
        self._heap: list[tuple[int, int, Hashable, _Timer]] = []
        self._counter = 0

    def __len__(self) -> int:
        return len(self._timers)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._timers

    def schedule(self, key: Hashable, deadline: int, action: Action) -> None:
        """Set or move the timer `key`."""
        timer = self._timers.get(key)
        if timer is not None and timer.queued_at <= deadline:
            timer.deadline = deadline
            timer.action = action
            return
        timer = self._timers[key] = _Timer(deadline, action)
        self._push(key, timer)

    def extend(self, key: Hashable, deadline: int) -> bool:
        """Move a timer that is set, keeping its action; False if there is none or it would move earlier."""
        timer = self._timers.get(key)
        if timer is None or timer.queued_at > deadline:
            return False
        timer.deadline = deadline
        return True

    def cancel(self, key: Hashable) -> None:
        self._timers.pop(key, None)

    def next_deadline(self) -> int | None:
        """When to look again. May be early, never late."""
        heap = self._heap
        while heap and self._timers.get(heap[0][2]) is not heap[0][3]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: int) -> Action | None:
        """The action of one timer whose time has come, oldest first; None when there is no other."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, key, timer = heappop(heap)
            if self._timers.get(key) is not timer:
                continue
            if timer.deadline > now:
                timer.queued_at = timer.deadline
                self._push(key, timer)
                continue
            del self._timers[key]
            return timer.action
        return None

    def _push(self, key: Hashable, timer: _Timer) -> None:
        self._counter += 1
        heappush(self._heap, (timer.queued_at, self._counter, key, timer))
        if len(self._heap) > _DEAD_ENTRIES_MIN + 2 * len(self._timers):
            self._heap = [entry for entry in self._heap if self._timers.get(entry[2]) is entry[3]]
            heapify(self._heap)
