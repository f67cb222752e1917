"""The codecs of record batches, with bounded output.

A few bytes can stand for gigabytes. So this module first walks the frames of lz4 and zstd: their block
headers bound the size of the output. If that bound exceeds the limit, the data is expanded into a buffer of
the limit's size, and refused if it does not fit. Snappy says its size, and gzip can be told where to stop.

Large blocks are expanded in a thread, while an event loop needs the interpreter. zlib, zstd, the decoder of
lz4 and blocks of snappy release the interpreter while they work. Copying, and lz4's compressor at its higher
levels, do not release it, so they work in pieces.

Kafka's readers want particular dialects: snappy in the chunks of the xerial library (or bare), and lz4 in
frames whose blocks do not depend on each other.
"""

from collections.abc import Iterator
from io import BytesIO
from struct import Struct
from struct import error as struct_error
from typing import Any

from penstock.wire.buffers import Buffer
from penstock.wire.errors import BatchError, ErrorCode, WireError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_BIG32 = Struct(">i")
_LITTLE32 = Struct("<I")

_XERIAL_HEADER = b"\x82SNAPPY\0" + Struct(">ii").pack(1, 1)
_XERIAL_CHUNK = 32 * 1024
_SNAPPY_RATIO_MAX = 22
"""A copy of 64 bytes takes three: no honest length is beyond 64/3 times the compressed bytes."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"
"""Independent blocks of at most 64 KiB, no checksums: what Kafka's own writer emits."""
_LZ4_BLOCK = 64 * 1024
_LZ4_RATIO_MAX = 255
_LZ4_LEVEL_FAST = 9
"""The level that Kafka calls default, and for which it uses the fast compressor."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK = 128 * 1024
_ZSTD_LEVEL = 3
_GZIP_LEVEL = 6
_GZIP_PIECE = 1024 * 1024
_GZIP_FEED = 4 * 1024
"""So much of what follows a first member is given to zlib at once: it copies what is left behind each member,
and an empty one has twenty bytes."""
_OWN_PAGES_MIN = 1024 * 1024
_GZIP_WINDOW = 31
"""zlib's way to say: a window of 32 KiB and a gzip header."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """The records block in a codec, at Kafka's default level if none is given."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        import zlib

        return zlib.compress(data, _GZIP_LEVEL if level is None else level, _GZIP_WINDOW)
    if codec == SNAPPY:
        return b"".join(_snappy_chunks(data))
    if codec == LZ4:
        if level is None or level == _LZ4_LEVEL_FAST:
            return b"".join(_lz4_blocks(data))
        compressor = _cramjam().lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        view = memoryview(data)
        for start in range(0, len(view), _LZ4_BLOCK):
            compressor.compress(bytes(view[start : start + _LZ4_BLOCK]))
        return bytes(compressor.finish())
    if codec == ZSTD:
        return bytes(_cramjam().zstd.compress(data, _ZSTD_LEVEL if level is None else level))
    raise ValueError(f"no codec has the number {codec}")


def decompress(codec: int, data: Buffer, limit: int) -> Buffer:
    """The records block taken out of a codec. WireError if it is damaged; BatchError with MESSAGE_TOO_LARGE
    if it would exceed `limit` bytes."""
    if codec == NONE:
        if len(data) > limit:
            raise too_large(limit)
        return data
    try:
        if codec == GZIP:
            return _gunzip(data, limit)
        if codec == SNAPPY:
            return _unsnappy(data, limit)
        if codec == LZ4:
            return _expand("lz4", data, limit, _lz4_bound(data, limit))
        if codec == ZSTD:
            return _expand("zstd", data, limit, _zstd_bound(data, limit))
    except (struct_error, IndexError):
        raise WireError(f"{CODEC_NAMES[codec]} data ends too soon") from None
    raise WireError(f"no codec has the number {codec}")


def too_large(limit: int) -> BatchError:
    return BatchError(ErrorCode.MESSAGE_TOO_LARGE, f"The records expand to more than {limit} bytes.")


def _cramjam() -> Any:
    """Imported when first needed: most brokers pass batches through as they are."""
    import cramjam

    return cramjam


def _expand(codec: str, data: Buffer, limit: int, bound: int) -> Buffer:
    cramjam = _cramjam()
    module = getattr(cramjam, codec)
    try:
        if bound <= limit:
            return memoryview(module.decompress(data))
        out = _room(limit)
        size: int = module.decompress_into(data, out)
        return out[:size]
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            raise too_large(limit) from None
        raise WireError(f"bad {codec} data: {error}") from None


def _room(limit: int) -> memoryview:
    """Where records are expanded to that may need all of it. Pages of its own cost nothing before they are
    written to, and the system has them back afterwards; an allocator may keep them, or lie between them."""
    if limit < _OWN_PAGES_MIN:
        return memoryview(bytearray(limit))
    import mmap

    return memoryview(mmap.mmap(-1, limit))


def _gunzip(data: Buffer, limit: int) -> Buffer:
    import zlib

    member = zlib.decompressobj(_GZIP_WINDOW)
    out: memoryview | None = None
    remaining = limit
    rest: Buffer = data
    following = memoryview(b"")
    try:
        while True:
            part = member.decompress(rest, min(_GZIP_PIECE, remaining + 1))
            size = limit - remaining
            remaining -= len(part)
            if remaining < 0:
                raise too_large(limit)
            if out is not None:
                out[size : size + len(part)] = part
            if member.eof:
                following = memoryview(data)[len(data) - len(following) - len(member.unused_data) :]
                if bytes(following[:2]) != b"\x1f\x8b":
                    break
                member = zlib.decompressobj(_GZIP_WINDOW)  # members may be joined end to end
                rest, following = following[:_GZIP_FEED], following[_GZIP_FEED:]
            else:
                rest = member.unconsumed_tail
                if not rest and following:
                    rest, following = following[:_GZIP_FEED], following[_GZIP_FEED:]
                elif not rest and not part:
                    raise WireError("gzip data ends too soon")
            if out is None:
                out = _room(limit)
                out[: len(part)] = part
    except zlib.error as error:
        raise WireError(f"bad gzip data: {error}") from None
    return part if out is None else out[: limit - remaining]


def _unsnappy(data: Buffer, limit: int) -> Buffer:
    raw = _cramjam().snappy
    if data[:8] != _XERIAL_HEADER[:8]:
        return _unsnappy_chunk(raw, data, limit)
    out = BytesIO()
    remaining = limit
    pos = len(_XERIAL_HEADER)
    end = len(data)
    while pos < end:
        (size,) = _BIG32.unpack_from(data, pos)
        if data[pos : pos + 8] == _XERIAL_HEADER[:8]:
            pos += len(_XERIAL_HEADER)  # streams may be joined end to end
            continue
        pos += 4
        if size < 0 or size > end - pos:
            raise WireError("snappy data ends too soon")
        part = _unsnappy_chunk(raw, data[pos : pos + size], remaining)
        remaining -= len(part)
        out.write(part)
        pos += size
    return out.getvalue()


def _unsnappy_chunk(raw: Any, chunk: Buffer, remaining: int) -> Buffer:
    try:
        size = raw.decompress_raw_len(chunk)
        if size > len(chunk) * _SNAPPY_RATIO_MAX:
            raise WireError("bad snappy data: its length is impossible")
        if size > remaining:
            raise too_large(remaining)
        return memoryview(raw.decompress_raw(chunk))
    except _cramjam().DecompressionError as error:
        raise WireError(f"bad snappy data: {error}") from None


def _snappy_chunks(data: Buffer) -> Iterator[bytes]:
    raw = _cramjam().snappy
    yield _XERIAL_HEADER
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_CHUNK):
        chunk = bytes(raw.compress_raw(view[start : start + _XERIAL_CHUNK]))
        yield _BIG32.pack(len(chunk)) + chunk


def _lz4_blocks(data: Buffer) -> Iterator[bytes]:
    compress_block = _cramjam().lz4.compress_block
    yield _LZ4_HEADER
    view = memoryview(data)
    for start in range(0, len(view), _LZ4_BLOCK):
        plain = view[start : start + _LZ4_BLOCK]
        block = bytes(compress_block(plain, store_size=False))
        if len(block) < len(plain):
            yield _LITTLE32.pack(len(block)) + block
        else:
            yield _LITTLE32.pack(len(plain) | 0x80000000) + bytes(plain)
    yield bytes(4)


def _lz4_bound(data: Buffer, limit: int) -> int:
    """No more than this can come out: enough to tell a batch from a bomb. Stops once beyond the limit."""
    pos, end, bound = 0, len(data), 0
    while pos < end and bound <= limit:
        if data[pos : pos + 4] != _LZ4_MAGIC:
            raise WireError("bad lz4 data: not a frame")
        flags, block_code = data[pos + 4], data[pos + 5] >> 4 & 7
        if flags >> 6 != 1 or block_code < 4:
            raise WireError("bad lz4 data: not a frame of version 1")
        block_max = 1 << 8 + 2 * block_code
        block_checksum = 4 if flags & 0x10 else 0
        pos += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        while bound <= limit:
            (size,) = _LITTLE32.unpack_from(data, pos)
            pos += 4
            if size == 0:
                break
            if size & 0x80000000:
                size &= 0x7FFFFFFF
                bound += size
            else:
                bound += min(block_max, size * _LZ4_RATIO_MAX)
            pos += size + block_checksum
        pos += 4 if flags & 0x04 else 0
    return bound


def _zstd_bound(data: Buffer, limit: int) -> int:
    """Like `_lz4_bound`. The size that a frame may declare is not trusted: only its blocks are."""
    pos, end, bound = 0, len(data), 0
    while pos < end and bound <= limit:
        (magic,) = _LITTLE32.unpack_from(data, pos)
        pos += 4
        if magic & 0xFFFFFFF0 == 0x184D2A50:  # a frame to be skipped
            pos += 4 + int(_LITTLE32.unpack_from(data, pos)[0])
            continue
        if data[pos - 4 : pos] != _ZSTD_MAGIC:
            raise WireError("bad zstd data: not a frame")
        flags = data[pos]
        single = flags >> 5 & 1
        pos += 1 + (1 - single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
        last = 0
        while not last and bound <= limit:
            block = data[pos] | data[pos + 1] << 8 | data[pos + 2] << 16
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            bound += _ZSTD_BLOCK if kind == 2 else min(size, _ZSTD_BLOCK)
            pos += 3 + (1 if kind == 1 else size)
        pos += 4 if flags & 4 else 0
    return bound
