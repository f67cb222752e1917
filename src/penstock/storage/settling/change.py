"""Changes to the manifests of partitions.

Settling, merging, moving and compaction compute these values; `committing` makes them true. A change carries
the manifest that it was computed from, its base, from the moment when it is computed.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from penstock.log.manifest import Manifest
from penstock.log.markers import AbortedTransaction
from penstock.metadata.image import ManifestRef, PartitionKey, WalRef
from penstock.storage.partitions.partition import Partition
from penstock.storage.settling.segment_writer import Written


class Base(NamedTuple):
    """A partition's manifest at the moment when a change was computed from it."""

    ref: ManifestRef | None
    manifest: Manifest | None

    @classmethod
    def of(cls, partition: Partition) -> "Base":
        return cls(partition.manifest_ref, partition.manifest)


class Change(NamedTuple):
    """A change to one partition."""

    partition: Partition
    base: Base
    manifest: Manifest | None = None
    """Replaces the manifest; None: it stays."""
    ref: ManifestRef | None = None
    log_start: int | None = None
    dropped: tuple[WalRef, ...] = ()
    """Logs of earlier incarnations: everything that they hold of the partition is in the manifest."""
    written: tuple[Written, ...] = ()
    forgotten: tuple[AbortedTransaction, ...] = ()
    """Compaction has removed the last record of these."""


Fold = Callable[[Collection[PartitionKey]], Sequence[Change]]
"""The changes of these partitions, computed from their manifests as they are now, without those that have
changed too much."""


def key_of(partition: Partition) -> PartitionKey:
    return partition.topic_id, partition.index
