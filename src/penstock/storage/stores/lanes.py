"""Lanes: which work shares threads, connections and limits, so that one kind cannot hold up another.

Heartbeats and the metadata log decide which broker is alive, and producers wait for the write-ahead log.
Neither may stand in a queue behind the reads of a consumer that lags, or behind settling, merging and
deleting. So every store keeps lanes: threads of their own on a directory, a client with connections and a
limit of its own on a service. A lane that hangs is full, and the others go on.
"""

from enum import Enum


class Lane(Enum):
    CONTROL = "control"
    """Leases and the metadata log."""
    LOG = "log"
    """Write-ahead logs: flushes and seals."""
    READ = "read"
    """Records, indexes and manifests."""
    WRITE = "write"
    """Settling, merging, compaction."""
    SWEEP = "sweep"
    """Deletions, which may come in thousands, and lists."""


_CONTROL = ("meta/", "live/")
_LOG = "wal/"


def lane_of_read(key: str) -> Lane:
    return Lane.CONTROL if key.startswith(_CONTROL) else Lane.READ


def lane_of_write(key: str) -> Lane:
    if key.startswith(_CONTROL):
        return Lane.CONTROL
    return Lane.LOG if key.startswith(_LOG) else Lane.WRITE


def lane_of_delete(key: str) -> Lane:
    return Lane.CONTROL if key.startswith(_CONTROL) else Lane.SWEEP


def lane_of_list(prefix: str) -> Lane:
    # A log is listed by whoever seals it, and its partitions have no leader meanwhile.
    return Lane.LOG if prefix.startswith(_LOG) else lane_of_delete(prefix)
