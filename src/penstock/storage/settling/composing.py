"""Makes new objects out of ranges of old ones.

The ranges come in the order of the new object. Batches that many partitions wrote in turn lie scattered in
the sources, so neighbours in that order may be far apart.

On a directory, ranges that lie close are read together, and written with one call for many. Threads hand the
interpreter on after each step of checking: one that ran Python for long would make the loop wait.

Elsewhere each source is asked for as few times as possible, and the new object is put together in memory. It
is bounded by the size of one settling.

Bytes are checked before they are written: the source is deleted later, and a bit that was flipped on the way
would be flipped for ever. So the kernel does not copy by itself. Where it would share blocks with the source
instead, it could share some that a failed write has never reached.

A new object survives a loss of power, on a directory too and whatever its durability: once the metadata log
refers to it, other objects are deleted that hold the same records.
"""

import asyncio
import contextlib
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from penstock.log.checking import Facts
from penstock.log.verifying import ExtentBytes, looks_whole
from penstock.storage.stores.files import store_error
from penstock.storage.stores.local import LocalDirectory
from penstock.storage.stores.objects import ObjectStore, Range, StoreError, StoreUnavailableError
from penstock.wire.buffers import Buffer

logger = logging.getLogger(__name__)

_READ_BYTES_MAX = 1024 * 1024
_GAP_BYTES_MAX = 4 * 1024
"""Reading over a gap of this size in a file costs less than another call."""
_RANGES_PER_STEP = 200
_REMOTE_GAP_BYTES_MAX = 1024 * 1024
"""The same for a request to a remote store."""
_REQUESTS_AT_ONCE = 8
_CHECKED_PER_STEP = 16
_ATTEMPTS_MAX = 5


class Promised(NamedTuple):
    """The batches in a range, as an index has them. Their CRCs do not cover their offsets and epochs."""

    base_offset: int
    last_offset: int
    facts: Facts


class CopyRange(NamedTuple):
    key: str
    position: int
    length: int
    promised: Promised

    @property
    def place(self) -> tuple[str, int, int]:
        return self[:3]


async def compose(store: ObjectStore, key: str, ranges: Sequence[CopyRange], tail: Buffer) -> None:
    """Create `key`, which only this incarnation uses, from ranges of other objects and `tail`."""
    if store.local is None:
        await create(store, key, *await _gather(store, ranges), tail)
    elif not await _compose_file(store.local, key, ranges, tail):
        raise StoreError(f"{key} exists, although its name was never used")


async def create(store: ObjectStore, key: str, *parts: Buffer) -> None:
    """Create `key`, which only this incarnation uses, from what is in memory."""
    created = await (store.create if store.local is None else store.local.create_durable)(key, *parts)
    if not created:
        raise StoreError(f"{key} exists, although its name was never used")


async def adopt(store: ObjectStore, source_key: str, key: str) -> bool:
    """Give the file of `source_key` the second name `key`, so that it outlives the first. False where the
    store cannot."""
    local = store.local
    if local is None:
        return False
    source, target = local.path(source_key), local.path(key)
    try:
        await local.run(_sync_file, local, source)
        return await local.run(partial(local.link, source, target, sync=True))
    except OSError:
        return False  # A file system without links, or no room for the name: it is copied instead.


def _sync_file(store: LocalDirectory, path: str) -> None:
    fd = store.files.open(path, os.O_RDONLY)
    try:
        store.files.fdatasync(fd)
    finally:
        store.files.close(fd)


async def _gather(store: ObjectStore, ranges: Sequence[CopyRange]) -> list[Buffer]:
    """The bytes of the ranges, from as few requests as possible."""
    requests: list[Range] = []
    for wanted in sorted(ranges, key=lambda one: one.place):
        last = requests[-1] if requests else None
        if last is not None and last.key == wanted.key:
            end = last.start + last.length
            if wanted.position - end <= _REMOTE_GAP_BYTES_MAX:
                length = max(end, wanted.position + wanted.length) - last.start
                requests[-1] = last._replace(length=length)
                continue
        requests.append(Range(*wanted.place))
    found: dict[str, list[tuple[int, memoryview]]] = {}
    for first in range(0, len(requests), _REQUESTS_AT_ONCE):
        some = requests[first : first + _REQUESTS_AT_ONCE]
        answers = await asyncio.gather(*(store.get_range(*request) for request in some))
        for request, answer in zip(some, answers, strict=True):
            found.setdefault(request.key, []).append((request.start, memoryview(answer)))
    parts: list[Buffer] = []
    for number, wanted in enumerate(ranges):
        if number % _CHECKED_PER_STEP == 0:
            await asyncio.sleep(0)
        pieces = found[wanted.key]
        start, piece = pieces[bisect_right(pieces, wanted.position, key=lambda one: one[0]) - 1]
        part = piece[wanted.position - start : wanted.position - start + wanted.length]
        parts.append(part if await _is_whole(part, wanted) else await _read_again(store, wanted, part))
    return parts


async def _is_whole(part: Buffer, wanted: CopyRange) -> bool:
    for step, whole in enumerate(_looks_whole(part, wanted)):
        if not whole:
            return False
        if step:
            await asyncio.sleep(0)
    return True


def _looks_whole(part: Buffer, wanted: CopyRange) -> Iterator[bool]:
    """Whether these are the batches that were promised, step by step."""
    promised = wanted.promised
    stored = ExtentBytes(memoryview(part), promised.base_offset, promised.last_offset)
    return looks_whole(stored, promised.facts)


async def _read_again(store: ObjectStore, wanted: CopyRange, part: Buffer) -> Buffer:
    """What a source that looks hurt gives when it is asked once more. It is hurt indeed if it gives the same
    bytes twice; then it is copied as it is, and readers find that out and say so, there as here."""
    seen = {bytes(part)}
    for _ in range(_ATTEMPTS_MAX):
        again = bytes(await store.get_range(*wanted.place))
        if await _is_whole(again, wanted):
            return again
        if again in seen:
            _tell_hurt(wanted)
            return again
        seen.add(again)
    raise StoreUnavailableError(f"{wanted.key} is read differently each time")


def _tell_hurt(wanted: CopyRange) -> None:
    logger.warning("hurt bytes were copied as they are key=%s position=%d length=%d", *wanted.place)


async def _compose_file(store: LocalDirectory, key: str, ranges: Sequence[CopyRange], tail: Buffer) -> bool:
    files = store.files
    path = store.path(key)
    try:
        temporary = store.temporary_name()
    except OSError as error:
        raise store_error(error, f"could not create {path}") from error
    try:
        target = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            position = await _Copier(store, target).copy(ranges)
            await store.run(files.write_all, target, (tail,), position)
            await store.run(files.fdatasync, target)
        finally:
            files.close(target)
        return await store.run(partial(store.link, temporary, path, sync=True))
    except OSError as error:
        raise store_error(error, f"could not create {path}") from error
    finally:
        with contextlib.suppress(OSError):
            files.unlink(temporary)


class _Copier:
    """Copies ranges to the end of one file."""

    def __init__(self, store: LocalDirectory, target: int) -> None:
        self._store = store
        self._files = store.files
        self._target = target
        self._position = 0
        self._source = -1
        self._source_key = ""

    async def copy(self, ranges: Sequence[CopyRange]) -> int:
        try:
            for first in range(0, len(ranges), _RANGES_PER_STEP):
                await self._store.run(self._copy_some, ranges[first : first + _RANGES_PER_STEP])
            return self._position
        finally:
            if self._source >= 0:
                self._files.close(self._source)

    def _copy_some(self, ranges: Sequence[CopyRange]) -> None:
        parts: list[memoryview] = []
        held = 0
        for together in _groups(ranges):
            first = together[0]
            if first.key != self._source_key:
                self._open(first.key)
            length = together[-1].position + together[-1].length - first.position
            found = memoryview(self._files.pread(self._source, length, first.position))
            if len(found) != length:
                raise StoreError(f"{first.key} ends before byte {first.position + length}")
            for wanted in together:
                at = wanted.position - first.position
                part = found[at : at + wanted.length]
                parts.append(part if self._is_whole(part, wanted) else self._read_again(wanted, part))
            held += length
            if held >= _READ_BYTES_MAX:
                self._write(parts)
                parts, held = [], 0
        self._write(parts)

    def _is_whole(self, part: Buffer, wanted: CopyRange) -> bool:
        for step, whole in enumerate(_looks_whole(part, wanted)):
            if not whole:
                return False
            if step:
                time.sleep(0)  # The loop may want the interpreter.
        return True

    def _read_again(self, wanted: CopyRange, part: Buffer) -> memoryview:
        """As for objects: a read that went wrong once must not become what is stored."""
        seen = {bytes(part)}
        for _ in range(_ATTEMPTS_MAX):
            again = self._files.pread(self._source, wanted.length, wanted.position)
            if self._is_whole(again, wanted):
                return memoryview(again)
            if again in seen:
                _tell_hurt(wanted)
                return memoryview(again)
            seen.add(again)
        raise StoreUnavailableError(f"{wanted.key} is read differently each time")

    def _open(self, key: str) -> None:
        if self._source >= 0:
            self._files.close(self._source)
            self._source = -1
        self._source = self._files.open(self._store.path(key), os.O_RDONLY)
        self._source_key = key

    def _write(self, parts: list[memoryview]) -> None:
        if parts:
            self._position += self._files.write_all(self._target, parts, self._position)


def _groups(ranges: Sequence[CopyRange]) -> Iterator[list[CopyRange]]:
    """Ranges that follow each other closely in one source, to be read in one go."""
    together: list[CopyRange] = []
    for wanted in ranges:
        if together:
            first, last = together[0], together[-1]
            gap = wanted.position - (last.position + last.length)
            if (
                wanted.key == last.key
                and 0 <= gap <= _GAP_BYTES_MAX
                and wanted.position + wanted.length - first.position <= _READ_BYTES_MAX
            ):
                together.append(wanted)
                continue
            yield together
        together = [wanted]
    if together:
        yield together
