"""Opens the store that a place names. Only its implementation is loaded: SDKs are large."""

import re
from typing import TYPE_CHECKING

from penstock.entropy import SYSTEM

if TYPE_CHECKING:
    from penstock.entropy import Entropy
    from penstock.storage.stores.objects import ObjectStore

_SCHEMES = ("file:", "memory:", "s3:", "gs:", "az:", "etcd:", "etcds:")
"""What begins with one of these is a URL, or was meant to be one."""

_USER = re.compile(r"(?<=://)[^/?#]*@")
"""In a URL, and in the endpoint within one: a name, and a password or a key."""
_CONTAINER = re.compile(r"abfss?://[^/?#:@]*@(?![^/?#]*@)")
"""In such a URL it is the container that stands before the account."""


def shown(location: str) -> str:
    """A place as it may be told."""
    container = _CONTAINER.match(location)
    begin = container.end() if container is not None else 0
    return location[:begin] + _USER.sub("***@", location[begin:])


def open_store(location: str, *, sync: bool = False, entropy: "Entropy" = SYSTEM) -> "ObjectStore":
    """The store at a directory, or at a URL: file:///dir, memory://, s3://bucket/prefix, gs://, az://, or
    etcd://host:port,.../prefix, which is for metadata and not for records.

    `sync`: on a directory, what is written survives a loss of power. Raises StoreError, with one
    sentence, for a URL that names no store.
    """
    scheme, separator, rest = location.partition("://")
    if not separator and location.startswith(_SCHEMES):
        from penstock.storage.stores.objects import StoreError

        raise StoreError(f"{location!r} is neither a directory nor a URL: a URL begins with SCHEME://.")
    if not separator or scheme == "file":
        from penstock.storage.stores.directory import DirectoryStore

        return DirectoryStore(rest if separator else location, sync=sync, entropy=entropy)
    if scheme == "memory":
        from penstock.storage.stores.memory import MemoryStore

        return MemoryStore()
    if scheme in ("etcd", "etcds"):
        from penstock.storage.stores.etcd import EtcdStore

        return EtcdStore(location, entropy=entropy)
    if shown(location) != location:
        from penstock.storage.stores.objects import StoreError

        raise StoreError("the URL of a store has no user in it: credentials come from the environment")
    from penstock.storage.stores.remote import RemoteStore

    return RemoteStore(location, entropy=entropy)
