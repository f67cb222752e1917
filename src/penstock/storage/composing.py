"""New objects out of ranges of old ones.

On a directory the kernel copies, or a thread with large reads and writes, so that neither the loop nor
memory notices. Elsewhere the ranges are read into memory, a bounded number at a time.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from penstock.storage.directory import DirectoryStore
from penstock.storage.files import IOV_MAX, Files, store_error
from penstock.storage.objects import ObjectStore, StoreError
from penstock.wire.buffers import Buffer

_KERNEL_COPY_BYTES = 256 * 1024
_WINDOW_BYTES = 1024 * 1024
_READS_AT_ONCE = 8


class CopyRange(NamedTuple):
    key: str
    position: int
    length: int


async def compose(store: ObjectStore, key: str, ranges: Sequence[CopyRange], tail: Buffer) -> None:
    """Create `key`, which only this incarnation uses, from ranges of other objects and `tail`."""
    if isinstance(store, DirectoryStore):
        created = await store.run(_compose_files, store, key, ranges, tail)
    else:
        parts: list[Buffer] = []
        for first in range(0, len(ranges), _READS_AT_ONCE):
            some = ranges[first : first + _READS_AT_ONCE]
            parts += await asyncio.gather(*(store.get_range(r.key, r.position, r.length) for r in some))
        created = await store.create(key, *parts, tail)
    if not created:
        raise StoreError(f"{key} exists, although its name was never used")


async def adopt(store: ObjectStore, source_key: str, key: str) -> bool:
    """Give the file of `source_key` the second name `key`, so that it outlives the first. False where the
    store cannot."""
    if not isinstance(store, DirectoryStore):
        return False
    source, target = store.path(source_key), store.path(key)
    try:
        return await store.run(store.link, source, target)
    except OSError:
        return False  # A file system without links, or no room for the name: it is copied instead.


def _compose_files(store: DirectoryStore, key: str, ranges: Sequence[CopyRange], tail: Buffer) -> bool:
    files = store.files
    path = store.path(key)
    temporary = store.temporary_name()
    try:
        target = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            position = _Copier(files, store.root, target).copy(ranges)
            files.write_all(target, (tail,), position)
            if store.sync:
                files.fdatasync(target)
        finally:
            files.close(target)
        return store.link(temporary, path)
    except OSError as error:
        raise store_error(error, f"could not create {path}") from error
    finally:
        with contextlib.suppress(OSError):
            files.unlink(temporary)


class _Copier:
    """Copies ranges to the end of one file. Small ones that lie close together are read in one window and
    written with one call."""

    def __init__(self, files: Files, root: str, target: int) -> None:
        self._files = files
        self._root = root
        self._target = target
        self._position = 0
        self._source = -1
        self._source_key = ""
        self._window = memoryview(b"")
        self._window_at = 0
        self._parts: list[memoryview] = []

    def copy(self, ranges: Sequence[CopyRange]) -> int:
        try:
            for wanted in ranges:
                self._open(wanted.key)
                if wanted.length >= _KERNEL_COPY_BYTES:
                    self._write_parts()
                    self._copy_large(wanted)
                else:
                    self._copy_small(wanted)
            self._write_parts()
            return self._position
        finally:
            if self._source >= 0:
                self._files.close(self._source)

    def _open(self, key: str) -> None:
        if key == self._source_key:
            return
        self._write_parts()
        if self._source >= 0:
            self._files.close(self._source)
        self._source = self._files.open(f"{self._root}/{key}", os.O_RDONLY)
        self._source_key = key
        self._window = memoryview(b"")

    def _copy_large(self, wanted: CopyRange) -> None:
        position, left = wanted.position, wanted.length
        while left:
            try:
                count = self._files.copy_range(self._source, self._target, left, position, self._position)
            except OSError:
                # This file system does not copy by itself.
                part = self._files.pread(self._source, min(left, _WINDOW_BYTES), position)
                count = self._files.write_all(self._target, (part,), self._position)
            if not count:
                raise StoreError(f"{wanted.key} ends before byte {wanted.position + wanted.length}")
            position += count
            left -= count
            self._position += count

    def _copy_small(self, wanted: CopyRange) -> None:
        at = wanted.position - self._window_at
        if at < 0 or at + wanted.length > len(self._window):
            self._write_parts()
            self._window = memoryview(self._files.pread(self._source, _WINDOW_BYTES, wanted.position))
            self._window_at = wanted.position
            at = 0
        if at + wanted.length > len(self._window):
            raise StoreError(f"{wanted.key} ends before byte {wanted.position + wanted.length}")
        self._parts.append(self._window[at : at + wanted.length])
        if len(self._parts) == IOV_MAX:
            self._write_parts()

    def _write_parts(self) -> None:
        if self._parts:
            self._position += self._files.write_all(self._target, self._parts, self._position)
            self._parts = []
