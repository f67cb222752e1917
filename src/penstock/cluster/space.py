"""How much a store holds for what can be read: the bytes of segments and manifests beside the bytes that can
be read in them. Brokers keep the first at about twice the second (`log.moving`).
"""

from typing import Final

import msgspec

_RATIO_MAX: Final = 2.25
_SLACK_BYTES: Final = 16 * 1024 * 1024
"""What brokers do not think worth moving, and do not count: manifests and indexes of small batches."""


class Space(msgspec.Struct):
    """Of settled records."""

    readable_bytes: int = 0
    """Batches from the log starts on."""
    stored_bytes: int = 0
    """Segments, their indexes and manifests, without what is in flight: that is about to be needed, or waits
    for its readers to end."""

    ratio: float = 0.0
    in_bounds: bool = True


def space_of(readable_bytes: int, stored_bytes: int) -> Space:
    ratio = stored_bytes / readable_bytes if readable_bytes else 0.0
    in_bounds = stored_bytes <= _RATIO_MAX * readable_bytes + _SLACK_BYTES
    return Space(readable_bytes, stored_bytes, round(ratio, 3), in_bounds)
