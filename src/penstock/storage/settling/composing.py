"""Makes new objects out of ranges of old ones.

The ranges come in the order of the new object. Batches that many partitions wrote in turn lie scattered in
the sources, so neighbours in that order may be far apart.

On a directory, ranges of one step that lie close are read together, in the order of the source, and written
with one call for many. Threads hand the interpreter on after each step of checking: one that ran Python for
long would make the loop wait.

Elsewhere each source is asked for as few times as possible, and the new object is put together in memory. It
is bounded by the size of one settling.

Bytes are checked before they are written: the source is deleted later, and a bit that was flipped on the way
would be flipped for ever. So the kernel does not copy by itself. Where it would share blocks with the source
instead, it could share some that a failed write has never reached. What is hurt in the source itself may yet
be brought back there, so whoever copies says whether it is copied all the same (`IfHurt`).

A new object survives a loss of power, on a directory too and whatever its durability: once the metadata log
refers to it, other objects are deleted that hold the same records.
"""

import asyncio
import contextlib
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from penstock.log.checking import Facts
from penstock.log.verifying import ExtentBytes, all_whole
from penstock.storage.stores.files import store_error
from penstock.storage.stores.local import LocalDirectory
from penstock.storage.stores.objects import (
    DamagedObjectError,
    ObjectStore,
    Range,
    StoreError,
    StoreUnavailableError,
)
from penstock.wire.buffers import Buffer

logger = logging.getLogger(__name__)

_STEP_BYTES = 1024 * 1024
"""What is read, checked and written at once."""
_STEP_RANGES = 256
_GAP_BYTES_MAX = 4 * 1024
"""Reading over a gap of this size in a file costs less than another call."""
_REMOTE_GAP_BYTES_MAX = 1024 * 1024
"""The same for a request to a remote store."""
_REQUESTS_AT_ONCE = 8
_CHECKED_TOGETHER = 64
_ATTEMPTS_MAX = 5
_PAUSES_SECONDS = (0.0, 0.1, 0.4, 1.0)
"""What is copied as hurt stays hurt, so whoever hurts it on its way has a moment to stop."""


class CopyRange(NamedTuple):
    """Bytes of an object, and the batches that an index promises there: their CRCs do not cover their offsets
    and epochs."""

    key: str
    position: int
    length: int
    base_offset: int
    last_offset: int
    facts: Facts

    @property
    def place(self) -> tuple[str, int, int]:
        return self[:3]


IfHurt: TypeAlias = Callable[[str], bool]
"""Whether hurt bytes of this object are copied as they are. May be asked in any thread."""


class HurtSourceError(DamagedObjectError):
    """Something that is to be copied is hurt."""

    def __init__(self, wanted: CopyRange) -> None:
        super().__init__(
            f"{wanted.key} is hurt between byte {wanted.position} and byte {wanted.position + wanted.length}"
        )
        self.key = wanted.key


def at_once(_key: str) -> bool:
    return True


async def compose(
    store: ObjectStore, key: str, ranges: Sequence[CopyRange], tail: Buffer, if_hurt: IfHurt = at_once
) -> None:
    """Create `key`, which only this incarnation uses, from ranges of other objects and `tail`.
    HurtSourceError."""
    if store.local is None:
        await create(store, key, *await _gather(store, ranges, if_hurt), tail)
    elif not await _compose_file(store.local, key, ranges, tail, if_hurt):
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


async def _gather(store: ObjectStore, ranges: Sequence[CopyRange], if_hurt: IfHurt) -> list[Buffer]:
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
    for first in range(0, len(ranges), _CHECKED_TOGETHER):
        await asyncio.sleep(0)
        together = ranges[first : first + _CHECKED_TOGETHER]
        cut = [_part(found[wanted.key], wanted) for wanted in together]
        if await _are_whole(cut, together):
            parts += cut
            continue
        looks = (_surely(store, wanted, part, if_hurt) for part, wanted in zip(cut, together, strict=True))
        parts += await asyncio.gather(*looks)
    return parts


def _part(pieces: Sequence[tuple[int, memoryview]], wanted: CopyRange) -> memoryview:
    start, piece = pieces[bisect_right(pieces, wanted.position, key=itemgetter(0)) - 1]
    return piece[wanted.position - start : wanted.position - start + wanted.length]


def _look(parts: Iterable[Buffer], ranges: Iterable[CopyRange]) -> Iterator[bool]:
    """Whether these are the batches that were promised, step by step; not to be asked after a False."""
    for facts, together in groupby(zip(parts, ranges, strict=True), key=lambda one: one[1].facts):
        yield from all_whole(
            (ExtentBytes(memoryview(part), wanted[3], wanted[4]) for part, wanted in together), facts
        )


async def _are_whole(parts: Iterable[Buffer], ranges: Iterable[CopyRange]) -> bool:
    for step, whole in enumerate(_look(parts, ranges)):
        if not whole:
            return False
        if step:
            await asyncio.sleep(0)
    return True


async def _surely(store: ObjectStore, wanted: CopyRange, part: Buffer, if_hurt: IfHurt) -> Buffer:
    """The bytes of a range, or what a source that looks hurt gives when it is asked again, for a while. It is
    hurt indeed if it gives the same bytes each time; if it is copied then, readers find that out and say so,
    there as here."""
    if await _are_whole((part,), (wanted,)):
        return part
    seen = {bytes(part)}
    for pause in _PAUSES_SECONDS:
        await asyncio.sleep(pause)
        again = bytes(await store.get_range(*wanted.place))
        if await _are_whole((again,), (wanted,)):
            return again
        seen.add(again)
    if len(seen) > 1:
        raise StoreUnavailableError(f"{wanted.key} is read differently each time")
    _take_hurt(wanted, if_hurt)
    return part


def _take_hurt(wanted: CopyRange, if_hurt: IfHurt) -> None:
    if not if_hurt(wanted.key):
        raise HurtSourceError(wanted)
    logger.warning("hurt bytes were copied as they are key=%s position=%d length=%d", *wanted.place)


async def _compose_file(
    store: LocalDirectory, key: str, ranges: Sequence[CopyRange], tail: Buffer, if_hurt: IfHurt
) -> bool:
    files = store.files
    path = store.path(key)
    try:
        temporary = store.temporary_name()
    except OSError as error:
        raise store_error(error, f"could not create {path}") from error
    try:
        target = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            position = await _Copier(store, target, if_hurt).copy(ranges)
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

    def __init__(self, store: LocalDirectory, target: int, if_hurt: IfHurt) -> None:
        self._store = store
        self._if_hurt = if_hurt
        self._files = store.files
        self._target = target
        self._position = 0
        self._source = -1
        self._source_key = ""
        self._copied = bytearray()
        self._window = bytearray(_STEP_BYTES)

    async def copy(self, ranges: Sequence[CopyRange]) -> int:
        try:
            for first in range(0, len(ranges), _STEP_RANGES):
                await self._store.run(self._copy_some, ranges[first : first + _STEP_RANGES])
            return self._position
        finally:
            if self._source >= 0:
                self._files.close(self._source)

    def _copy_some(self, ranges: Sequence[CopyRange]) -> None:
        first = size = 0
        for number, wanted in enumerate(ranges):
            if size and size + wanted.length > _STEP_BYTES:
                self._copy_together(ranges[first:number])
                first, size = number, 0
            size += wanted.length
        self._copy_together(ranges[first:])

    def _copy_together(self, ranges: Sequence[CopyRange]) -> None:
        ends = list(accumulate(wanted.length for wanted in ranges))
        if ends[-1] > len(self._copied):
            self._copied = bytearray(ends[-1])
        copied = memoryview(self._copied)[: ends[-1]]
        parts = [copied[end - wanted.length : end] for wanted, end in zip(ranges, ends, strict=True)]
        for numbers in _neighbours(ranges):
            self._read([ranges[number] for number in numbers], [parts[number] for number in numbers])
        if not self._are_whole(parts, ranges):
            for part, wanted in zip(parts, ranges, strict=True):
                if not self._are_whole((part,), (wanted,)):
                    part[:] = self._read_again(wanted, bytes(part))
        self._position += self._files.write_all(self._target, (copied,), self._position)

    def _read(self, ranges: Sequence[CopyRange], parts: Sequence[memoryview]) -> None:
        """Ranges that lie close, in the order of the source."""
        if len(ranges) == 1:
            self._fill(ranges[0].key, ranges[0].position, parts[0])
            return
        start = ranges[0].position
        window = memoryview(self._window)[: ranges[-1].position + ranges[-1].length - start]
        self._fill(ranges[0].key, start, window)
        for wanted, part in zip(ranges, parts, strict=True):
            at = wanted.position - start
            part[:] = window[at : at + wanted.length]

    def _fill(self, key: str, position: int, into: memoryview) -> None:
        if key != self._source_key:
            self._open(key)
        filled = 0
        while filled < len(into):
            read = self._files.preadv(self._source, (into[filled:],), position + filled, 0)
            if not read:
                raise StoreError(f"{key} ends before byte {position + len(into)}")
            filled += read

    def _are_whole(self, parts: Iterable[Buffer], ranges: Iterable[CopyRange]) -> bool:
        for step, whole in enumerate(_look(parts, ranges)):
            if not whole:
                return False
            if step:
                time.sleep(0)  # The loop may want the interpreter.
        return True

    def _read_again(self, wanted: CopyRange, part: bytes) -> Buffer:
        """As for objects: a read that went wrong once must not become what is stored."""
        seen = {part}
        for _ in range(_ATTEMPTS_MAX):
            again = bytearray(wanted.length)
            self._fill(wanted.key, wanted.position, memoryview(again))
            if self._are_whole((again,), (wanted,)):
                return again
            if bytes(again) in seen:
                _take_hurt(wanted, self._if_hurt)
                return again
            seen.add(bytes(again))
        raise StoreUnavailableError(f"{wanted.key} is read differently each time")

    def _open(self, key: str) -> None:
        if self._source >= 0:
            self._files.close(self._source)
            self._source = -1
        self._source = self._files.open(self._store.path(key), os.O_RDONLY)
        self._source_key = key


def _neighbours(ranges: Sequence[CopyRange]) -> Iterator[list[int]]:
    """The numbers of ranges that follow each other closely in one source, to be read in one go."""
    together: list[int] = []
    source, end, limit = "", 0, 0
    for number in sorted(range(len(ranges)), key=lambda one: ranges[one][:2]):
        key, position, length, *_ = ranges[number]
        if together and (
            key != source or not 0 <= position - end <= _GAP_BYTES_MAX or position + length > limit
        ):
            yield together
            together = []
        if not together:
            source, limit = key, position + _STEP_BYTES
        together.append(number)
        end = position + length
    yield together
