"""What shares threads, connections and limits with what, so that one kind of work cannot hold up another.

Heartbeats and the metadata log decide who is alive, and producers wait for the write-ahead log. Neither may
stand in a queue behind the reads of a consumer that lags, or behind settling, merging and deleting. So every
store keeps lanes: threads of their own on a directory, a client with connections and a limit of its own on a
service. A lane that hangs is full, and the others go on.
"""

from enum import Enum


class Lane(Enum):
    CONTROL = "control"
    """Leases, the metadata log, sealing."""
    LOG = "log"
    """Flushes of the write-ahead log."""
    READ = "read"
    """Records, indexes and manifests."""
    WRITE = "write"
    """Settling, merging, deleting, listing."""


_CONTROL = ("meta/", "live/")
_LOG = "wal/"


def lane_of_read(key: str) -> Lane:
    return Lane.CONTROL if key.startswith(_CONTROL) else Lane.READ


def lane_of_create(key: str) -> Lane:
    if key.startswith(_CONTROL):
        return Lane.CONTROL
    return Lane.LOG if key.startswith(_LOG) else Lane.WRITE


def lane_of_change(key: str) -> Lane:
    """Of anything that is neither read nor created: overwritten, deleted, listed."""
    return Lane.CONTROL if key.startswith(_CONTROL) else Lane.WRITE
