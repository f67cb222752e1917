"""The present state of a store, for one broker."""

from __future__ import annotations

import msgspec

SLOW_FROM_SECONDS = 0.1
"""From here on a store counts as slow, and on a directory a call may take as long as its latency."""


class Weather(msgspec.Struct):
    latency: float = 0.004
    """Seconds that a request and its answer take together, typically."""
    refused: float = 0.0
    """The share of requests that fail without an effect."""
    lost: float = 0.0
    """The share of requests that take effect, but whose answer does not come."""
    late: float = 0.0
    """The share of writes that take effect long after their sender was told that they failed."""
    twice: float = 0.0
    """The share of writes that take effect once more, long after their sender was answered."""
    late_seconds: float = 20.0
    late_prefix: str = ""
    """Which writes these are."""
    out: bool = False
    """Nothing gets through."""
    denied: str | None = None
    """Requests for keys that begin so are refused, and not because the store were unwell: a key service, a
    permission."""
    full: bool = False
    read_only: bool = False
    sync_fails: float = 0.0
    """The share of syncs that fail; what was to be synced is only in the page cache then."""
    short: float = 0.0
    """The share of reads that return less than was asked for."""
    flips: float = 0.0
    """The share of reads that return a wrong bit, which the next read does not."""
    flipped_at: float = -1e9
    """When that was last so."""
    stale: float = 0.0
    """The share of names that came or went lately, of which a list does not know."""
    stops: float = 0.0
    """How often a process is stopped between two system calls; half of the time for up to `stop_seconds`."""
    stop_seconds: float = 6.0
    troubled_at: float = -1e9
    """When something last went wrong."""

    @property
    def fair(self) -> bool:
        """Nothing fails."""
        return not (
            self.refused
            or self.lost
            or self.late
            or self.twice
            or self.out
            or self.full
            or self.read_only
            or self.denied is not None
        )

    @property
    def calm(self) -> bool:
        """Nothing is in a call's way."""
        return not self.stops and self.latency < SLOW_FROM_SECONDS and self.fair

    def clear(self, latency: float) -> None:
        """All is well again."""
        self.refused = self.lost = self.late = self.twice = 0.0
        self.sync_fails = self.short = self.flips = self.stale = 0.0
        self.out = self.full = self.read_only = False
        self.denied = None
        self.late_prefix = ""
        self.late_seconds = 20.0
        self.latency = latency
