"""Opens the kind of write-ahead logs that a store has. The other kind is not loaded."""

from typing import TYPE_CHECKING

from penstock.entropy import SYSTEM

if TYPE_CHECKING:
    from penstock.entropy import Entropy
    from penstock.storage.stores.objects import ObjectStore
    from penstock.storage.wal.port import WalStore


def open_wal_store(
    store: "ObjectStore", *, file_bytes: int = 64 * 1024 * 1024, entropy: "Entropy" = SYSTEM
) -> "WalStore":
    """Where write-ahead logs go: appended files on a directory, one object per flush elsewhere."""
    if store.local is not None:
        from penstock.storage.wal.directory import DirectoryWalStore

        return DirectoryWalStore(store.local, file_bytes=file_bytes, entropy=entropy)
    from penstock.storage.wal.objects import ObjectWalStore

    return ObjectWalStore(store, entropy=entropy)
