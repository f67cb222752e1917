"""Reads one flush of a write-ahead log through an object store, and the rest of a hurt one."""

from typing import Final, NamedTuple, Protocol

from penstock.cluster.health.bench import Bench
from penstock.log.flush import (
    FLUSH_HEADER_SIZE,
    FlushError,
    FlushHeader,
    check_index,
    decode_flush_header,
    iter_blocks,
)
from penstock.log.salvage import salvage
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c

_WINDOW_BYTES: Final = 256 * 1024
_FLUSH_MAGIC: Final = b"PWF1"
_SALVAGED_BYTES_MAX: Final = 128 * 1024 * 1024
"""More than a file of a log grows to."""


class FlushAt(NamedTuple):
    header: FlushHeader
    position: int
    blocks: bytes
    """Its index."""


class Window:
    """An object of a known size, read a good piece at a time."""

    def __init__(self, bench: Bench, key: str, size: int) -> None:
        self.key = key
        self.size = size
        self._bench = bench
        self._held: Buffer = b""
        self._held_at = 0

    async def bytes(self, position: int, length: int) -> bytes:
        """As much of the range as there is."""
        length = min(length, self.size - position)
        if length <= 0:
            return b""
        at = position - self._held_at
        if at < 0 or at + length > len(self._held):
            wanted = min(max(length, _WINDOW_BYTES), self.size - position)
            self._held = await self._bench.store.get_range(self.key, position, wanted)
            self._held_at, at = position, 0
        return bytes(self._held[at : at + length])

    def forget(self) -> None:
        self._held = b""


class StoredBytes:
    """The same of an object that is in memory."""

    def __init__(self, key: str, stored: bytes) -> None:
        self.key = key
        self.size = len(stored)
        self._stored = stored

    async def bytes(self, position: int, length: int) -> bytes:
        return self._stored[position : position + max(0, length)]


class Readable(Protocol):
    size: int

    async def bytes(self, position: int, length: int) -> bytes:
        """As much of the range as there is."""


async def read_flush(window: Readable, position: int, number: int, nonce: bytes | None) -> FlushAt | None:
    """The flush that begins at a position, if it is whole and the one that is looked for."""
    try:
        header = decode_flush_header(await window.bytes(position, FLUSH_HEADER_SIZE))
        if header.number != number or (nonce is not None and header.nonce != nonce):
            return None
        index = await window.bytes(position + FLUSH_HEADER_SIZE + header.data_size, header.index_size)
        check_index(header, index)
    except FlushError:
        return None
    return FlushAt(header, position, index)


async def salvage_flush(
    window: Readable, position: int, end: int, number: int, nonce: bytes | None
) -> FlushAt | None:
    """The flush that lies from `position` up to `end`, where something else begins, if what is left of it
    proves what it was."""
    if end - position > _SALVAGED_BYTES_MAX:
        return None
    region = await window.bytes(position, end - position)
    found = salvage(region, number, nonce, 0)
    if found.damage is not None or found.nonce is None:
        return None
    blocks = found.blocks
    data_size = found.size - len(blocks) - FLUSH_HEADER_SIZE
    count = sum(block.batch_count for block in iter_blocks(blocks))
    header = FlushHeader(number, found.nonce, data_size, len(blocks), crc32c(blocks), count, found.time_ms)
    return FlushAt(header, position, blocks)


async def find_flush(window: Readable, position: int, above: int, nonce: bytes | None) -> FlushAt | None:
    """The next whole flush behind a position whose number is greater than `above`."""
    while position < window.size:
        stored = await window.bytes(position, _WINDOW_BYTES)
        at = stored.find(_FLUSH_MAGIC)
        if at < 0:
            position += max(1, len(stored) - FLUSH_HEADER_SIZE + 1)
            continue
        position += at
        try:
            header = decode_flush_header(await window.bytes(position, FLUSH_HEADER_SIZE))
        except FlushError:
            header = None
        if header is not None and header.number > above:
            flush = await read_flush(window, position, header.number, nonce)
            if flush is not None:
                return flush
        position += 1
    return None


async def any_flush(
    window: Readable, position: int, number: int, nonce: bytes | None, *, in_file: bool
) -> FlushAt | None:
    """The flush at a position, salvaged if need be, or else the next one of the file that is whole."""
    flush = await read_flush(window, position, number, nonce)
    if flush is None:
        following = await find_flush(window, position + 1, number, nonce) if in_file else None
        end = following.position if following is not None else window.size
        flush = await salvage_flush(window, position, end, number, nonce) or following
    return flush
