"""Heals a directory whose newest objects a power cut tore.

The metadata log is synced entry by entry. So a torn entry was written by an older version, or the disk lied.
Then nothing that surely survived rests on it. But it must not be skipped either: its number may be the epoch
of an incarnation whose write-ahead log is there. So the healer replaces a torn entry in its place by one that
changes nothing. Its number stays used, and no incarnation gets that epoch again. The torn bytes are kept
under `torn/`, together with all objects of incarnations whose registration is lost: nothing refers to them
any more, and they would be swept away as garbage.

Several processes may start at once. One heals at a time, under a lock that the system releases when the
process ends, and looks again under it. No process heals beside a broker that runs, whose image may hold the
entry that is torn on the disk. A healer that dies half-way leaves less to heal.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Final

from penstock.storage.stores.files import LOCK_EXCLUSIVE, store_error
from penstock.storage.stores.local import TORN, LocalDirectory

_INCARNATIONS: Final = ("wal", "segments", "manifests")
"""Each of these has a directory per broker, and there one per epoch."""


class RunningBrokersError(Exception):
    """Brokers of this directory are running."""


def replace_torn(
    store: LocalDirectory,
    replacements: Mapping[str, bytes],
    beyond: str | None,
    first_epoch: int | None,
    is_torn: Callable[[str, bytes], bool],
) -> list[str]:
    """Replace torn objects, in the order given, and set aside what incarnations from `first_epoch` on left,
    if some are lost with them.

    Returns the names of what was set aside; none if there is nothing to heal any more: one of the objects is
    whole, or there is one at `beyond`. RunningBrokersError, StoreError. Blocks.
    """
    files = store.files
    try:
        lock = files.open(store.path("meta"), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise store_error(error, f"could not lock {store.root}/meta") from error
    try:
        files.flock(lock, LOCK_EXCLUSIVE)
        if beyond is not None and files.exists(store.path(beyond)):
            return []
        if not all(is_torn(key, _contents(store, key)) for key in replacements):
            return []
        if store.presence().any_held():
            raise RunningBrokersError
        # First what belongs to the lost entries: once these are whole again, nobody looks for it.
        lost = _incarnations(store, first_epoch) if first_epoch is not None else []
        aside = [_set_aside(store, key) for key in lost]
        for key, contents in replacements.items():
            aside.append(_set_aside(store, key, keep=True))
            store.put_durable(store.path(key), contents)
        return aside
    except OSError as error:
        raise store_error(error, f"could not heal {store.root}") from error
    finally:
        files.close(lock)


def _contents(store: LocalDirectory, key: str) -> bytes:
    fd = store.files.open(store.path(key), os.O_RDONLY)
    try:
        size = store.files.size(fd)
        return store.files.pread(fd, size, 0) if size else b""
    finally:
        store.files.close(fd)


def _incarnations(store: LocalDirectory, first_epoch: int) -> list[str]:
    """Whatever belongs to incarnations that registered with that entry or a later one."""
    found = []
    for kind in _INCARNATIONS:
        with contextlib.suppress(FileNotFoundError):
            for broker in store.files.listdir(f"{store.root}/{kind}"):
                epochs = store.files.listdir(f"{store.root}/{kind}/{broker}")
                found += [
                    f"{kind}/{broker}/{epoch}"
                    for epoch in epochs
                    if epoch.isdecimal() and int(epoch) >= first_epoch
                ]
    return found


def _set_aside(store: LocalDirectory, key: str, *, keep: bool = False) -> str:
    """Move what is at `key` to a new name under `torn/`; `keep`: it is there under both names."""
    files = store.files
    files.make_directories(f"{store.root}/{TORN}", sync=True)
    name = key.replace("/", "-")
    number = 1
    while files.exists(f"{store.root}/{TORN}/{name}.{number}"):
        number += 1
    target = f"{TORN}/{name}.{number}"
    (files.link if keep else files.rename)(store.path(key), f"{store.root}/{target}")
    files.sync_directory(f"{store.root}/{TORN}")
    if not keep:
        files.sync_directory(os.path.dirname(store.path(key)))
    return target
