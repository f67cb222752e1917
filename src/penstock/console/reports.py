"""What takes long is done when somebody asks for it, and its result is kept for that visitor."""

from __future__ import annotations

import time
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from penstock.console.cluster import Cluster


class Kept(NamedTuple):
    made_ms: int
    seconds: float
    """How long it took."""
    report: Any


_kept: WeakKeyDictionary[Cluster, dict[str, Kept]] = WeakKeyDictionary()
_lock = Lock()


def keep(cluster: Cluster, what: str, report: object, began: float) -> None:
    """`began`: by the monotonic clock."""
    made = Kept(time.time_ns() // 1_000_000, time.monotonic() - began, report)
    with _lock:
        _kept.setdefault(cluster, {})[what] = made


def kept(cluster: Cluster, what: str) -> Kept | None:
    with _lock:
        return _kept.get(cluster, {}).get(what)
