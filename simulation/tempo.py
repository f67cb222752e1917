"""Bounds that are minutes or megabytes outside are seconds or kilobytes here: sweeps, retries, deadlines.

`scene.SETTINGS` sets all that people can set; this module sets the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.cluster import watching
from penstock.cluster.metadata_log import MetadataLog
from penstock.log import moving as log_moving
from penstock.log.policy import LogPolicy
from penstock.metadata.image import ClusterImage
from penstock.node.settings import Policies
from penstock.storage.ledger import upkeep
from penstock.storage.settling import garbage, moving
from penstock.transactions import transaction

SEGMENT_BYTES_MAX = 400
WORTH_BYTES = 1024
"""Dead bytes that are left where they are."""
EPOCH_MAX = 12
"""After so many epochs a producer gets another id, where it takes 32767 outside."""
PROPOSE_SECONDS = 4.0
"""Less than a late write may take."""

_OF = Policies.of


def _of(self: Policies, image: ClusterImage, topic: str) -> LogPolicy:
    policy = _OF(self, image, topic)
    return msgspec.structs.replace(policy, segment_bytes=min(policy.segment_bytes, SEGMENT_BYTES_MAX))


CHANGES: list[tuple[Any, str, Any]] = [
    (upkeep, "_SWEEP_AFTER_SECONDS", 2.0),
    (upkeep, "_SWEEP_EVERY_SECONDS", 5.0),
    (upkeep, "_RETRY_SECONDS", 1.0),
    (garbage, "_RETRY_FIRST_SECONDS", 1.0),
    (garbage, "_RETRY_MAX_SECONDS", 4.0),
    (moving, "_RETRY_FIRST_SECONDS", 2.0),
    (moving, "_RETRY_MAX_SECONDS", 4.0),
    (moving, "_MANIFESTS_EVERY_SECONDS", 3.0),
    (log_moving, "_WORTH_BYTES", WORTH_BYTES),
    (watching, "PROCESS_LOOK_SECONDS", 0.5),
    (transaction, "EPOCH_MAX", EPOCH_MAX),
    (Policies, "of", _of),
]


@contextmanager
def quick() -> Iterator[None]:
    """It is so meanwhile."""
    before = [(place, name, getattr(place, name)) for place, name, _ in CHANGES]
    defaults = MetadataLog.__init__.__kwdefaults__
    assert defaults is not None
    patience = defaults["propose_timeout"]
    defaults["propose_timeout"] = PROPOSE_SECONDS
    for place, name, instead in CHANGES:
        setattr(place, name, instead)
    try:
        yield
    finally:
        defaults["propose_timeout"] = patience
        for place, name, old in before:
            setattr(place, name, old)
