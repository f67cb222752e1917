"""The state that all parts of one ledger share: its incarnation, its partitions, and the cluster image.

Only the ledger writes to it. All parts read it, and none keeps a copy of the image.
"""

from typing import Protocol

from penstock.clock import Clock
from penstock.log.policy import DEFAULT_POLICY, LogPolicy
from penstock.metadata.image import ClusterImage, PartitionKey, WalRef
from penstock.metadata.proposing import Propose
from penstock.storage.partitions.partition import Partition
from penstock.storage.partitions.settings import DEFAULT_CLEANER_SETTINGS, CleanerSettings, LedgerSettings
from penstock.storage.stores.objects import ObjectStore
from penstock.storage.wal.files import WalFiles
from penstock.storage.wal.port import WalStore


class Holdings:
    def __init__(
        self,
        own: WalRef,
        store: ObjectStore,
        wal_store: WalStore,
        settings: LedgerSettings,
        clock: Clock,
        propose: Propose,
    ) -> None:
        """`own`: the log of this incarnation. `propose` is the metadata log's."""
        self.own = own
        self.store = store
        self.wal_store = wal_store
        self.settings = settings
        self.clock = clock
        self.propose = propose
        self.image = ClusterImage()
        """The newest that the ledger was told of."""
        self.partitions: dict[PartitionKey, Partition] = {}
        """Led here, and open."""
        self.files = WalFiles()


class LogPolicies(Protocol):
    """The settings of topics and of the cluster, as of an image."""

    def of(self, image: ClusterImage, topic: str) -> LogPolicy: ...

    def cleaner(self, image: ClusterImage) -> CleanerSettings: ...


class DefaultPolicies:
    def of(self, image: ClusterImage, topic: str) -> LogPolicy:
        return DEFAULT_POLICY

    def cleaner(self, image: ClusterImage) -> CleanerSettings:
        return DEFAULT_CLEANER_SETTINGS
