"""The events that a client program written in Python reports while it is a member of a group."""

import json
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

# Short, so that a rebalance is noticed soon; the session outlives a machine that is busy for a while.
SESSION_TIMEOUT_MS = 15_000
HEARTBEAT_INTERVAL_MS = 500
# Longer than any rebalance of members that answer may take: one that waits for it is found out.
REBALANCE_TIMEOUT_MS = 60_000
POLL_MS = 200
# How long a static member of the `group` command is expected back: longer than a stage of all clients takes.
STATIC_SESSION_TIMEOUT_MS = 120_000


class Orders:
    """Hears the order to leave, or that nobody is there to give it."""

    def __init__(self) -> None:
        self._leave = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def told_to_leave(self) -> bool:
        return self._leave.is_set()

    def _listen(self) -> None:
        sys.stdin.readline()  # the order to leave, or the end of the input
        self._leave.set()


class Voice:
    """Speaks the events of the `member` command, and hears the order to leave.

    It remembers which partitions are owned. Some clients give partitions up in silence when they close: the
    program calls `stopped` when it has consumed and committed for the last time, and that reports them.
    """

    def __init__(self) -> None:
        self._owned: set[int] = set()
        self._lock = threading.Lock()
        self._orders = Orders()

    @property
    def told_to_leave(self) -> bool:
        return self._orders.told_to_leave

    def owns(self, partition: int) -> bool:
        return partition in self._owned

    def assigned(self, partitions: Iterable[int]) -> None:
        """All of these are owned from now on, besides what was."""
        with self._lock:
            new = sorted(set(partitions) - self._owned)
            self._owned.update(new)
            self._say("assigned", partitions=new)

    def revoked(self, partitions: Iterable[int], event: str = "revoked") -> None:
        with self._lock:
            given_up = sorted(set(partitions) & self._owned)
            self._owned.difference_update(given_up)
            if given_up:
                self._say(event, partitions=given_up)

    def lost(self, partitions: Iterable[int]) -> None:
        self.revoked(partitions, "lost")

    def consumed(self, partition: int, offsets: list[int]) -> None:
        if offsets:
            with self._lock:
                self._say("consumed", partition=partition, offsets=offsets)

    def stopped(self) -> None:
        self.revoked(list(self._owned))

    def _say(self, event: str, **details: Any) -> None:
        print(json.dumps({"event": event, **details, "at": time.time() * 1000}), flush=True)
