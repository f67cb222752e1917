"""Message sets of magic 0 and 1, which clients before 2017 write and read, to and from record batches.

A message set is a row of messages, each with its own offset and CRC. A compressed one is a message whose
value is a message set: the wrapper. Inside a wrapper of magic 0 offsets are absolute. Inside one of magic 1
they count from the first, and the wrapper has the offset of the last. The broker ignores the offsets that
producers send and numbers the records itself.

Magic 0 has no timestamps, and neither magic has record headers; a conversion to an old format drops them.
Writers of lz4 at magic 0 computed the header checksum over too many bytes. Readers of that time expect this,
so this module does the same, as Kafka does.
"""

from collections.abc import Iterator
from struct import Struct
from zlib import crc32

import msgspec

from penstock.wire import compression
from penstock.wire.batch import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Record,
    assemble,
    check_produced,
    encode_record,
    expanded_max,
    iter_batches,
    iter_records,
)
from penstock.wire.buffers import Buffer
from penstock.wire.errors import BatchError, ErrorCode, WireError

MAGIC_AT = 16
"""Where the magic byte is, in messages and record batches alike."""

_SET_OVERHEAD = 12
_PREFIX = Struct(">qiIbb")
_SIZES = {0: 14, 1: 22}
"""The least size of a message by magic: no key, no value."""
_TIMESTAMP = Struct(">q")
_LENGTH = Struct(">i")
_UINT32 = Struct(">I")
_OFFSET_AND_SIZE = Struct(">qi")
_LZ4_HEADER_SIZE = 7
_LZ4_BROKEN_HEADER = b"\x04\x22\x4d\x18\x60\x40\x1a"
"""What Kafka writes at magic 0: the checksum, the last byte, covers the magic number too."""


class _Message(msgspec.Struct, gc=False):
    """One message as it stands in its set."""

    magic: int
    attributes: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def upconvert(buf: Buffer, limit: int | None = None) -> bytearray | None:
    """What an old client produced, as one record batch in the same codec; None if there is no whole message.

    A record batch passes as it is once `check_produced` has nothing against it. Raises BatchError, with
    MESSAGE_TOO_LARGE also where the messages, or what they expand to, exceed a `limit`.
    """
    if len(buf) > MAGIC_AT and buf[MAGIC_AT] == 2:
        check_produced(buf)
        return bytearray(buf)
    if limit is not None and len(buf) > limit:
        raise compression.too_large(limit)
    messages = _iter_messages(buf)
    first = next(messages, None)
    if first is None:
        return None
    codec = first.attributes & CODEC_MASK
    if not codec:
        return _as_batch(_alike(first, messages), codec)
    if next(messages, None) is not None:
        raise _not_alone()
    return _as_batch(_unwrap(first, limit), codec)


def _as_batch(messages: Iterator[_Message], codec: int) -> bytearray:
    """Messages become records one by one: there may be very many, and an object for each would be much."""
    block = bytearray()
    count, base_timestamp, max_timestamp = 0, NO_TIMESTAMP, NO_TIMESTAMP
    for message in messages:
        if not count:
            base_timestamp = message.timestamp
        max_timestamp = max(max_timestamp, message.timestamp)
        block += encode_record(
            Record(count, message.timestamp, message.key, message.value), 0, base_timestamp
        )
        count += 1
    header = BatchHeader(
        base_offset=0,
        length=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=codec,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )
    return assemble(header, compression.compress(codec, block))


def _alike(first: _Message, others: Iterator[_Message]) -> Iterator[_Message]:
    """All messages of a set that is not compressed."""
    yield first
    for message in others:
        if message.attributes & CODEC_MASK:
            raise _not_alone()
        if message.magic != first.magic:
            raise _invalid("the messages of a set have different magic numbers")
        yield message


def downconvert(buf: Buffer, magic: int, first_offset: int) -> bytes:
    """Record batches as a message set: see `downconvert_batch`."""
    return b"".join(
        downconvert_batch(buf, pos, header, magic, first_offset) for pos, header in iter_batches(buf)
    )


def downconvert_batch(
    buf: Buffer, pos: int, header: BatchHeader, magic: int, first_offset: int, limit: int | None = None
) -> bytes:
    """The record batch at `pos` as a message set of magic 0 or 1, for who fetches from `first_offset`.

    Control batches are left out: old readers know nothing of transactions. So are records before the offset,
    except those inside a wrapper that also holds later ones. The result can therefore be empty though there
    was something, and the caller has to read on. Raises BatchError for zstd, which old readers do not have
    (UNSUPPORTED_COMPRESSION_TYPE), and for what would exceed `expanded_max` or a smaller limit that is given
    (MESSAGE_TOO_LARGE); WireError for damaged records.
    """
    if header.is_control or not header.record_count:
        return b""
    if header.codec == compression.ZSTD:
        raise BatchError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd records cannot be given to a client this old"
        )
    records = iter_records(buf, pos, limit)
    if header.codec:
        most = expanded_max(header.size)
        return _wrap(header, records, magic, first_offset, most if limit is None else min(limit, most))
    kind = header.attributes & LOG_APPEND_TIME
    # Some clients cannot skip messages before the offset they asked for, except inside a wrapper.
    return b"".join(
        _encode(magic, kind, record.offset, record.timestamp, record.key, record.value)
        for record in records
        if record.offset >= first_offset
    )


def _iter_messages(buf: Buffer) -> Iterator[_Message]:
    """The whole messages of a set; one that is cut short at the end is left out, as Kafka does."""
    pos, end = 0, len(buf)
    view = memoryview(buf)
    while end - pos >= _SET_OVERHEAD + _SIZES[0]:
        offset, size, crc, magic, attributes = _PREFIX.unpack_from(view, pos)
        stop = pos + _SET_OVERHEAD + size
        if stop > end:
            return
        if size < _SIZES.get(magic, size + 1):
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"a message of magic {magic} claims {size} bytes")
        if crc32(view[pos + MAGIC_AT : stop]) != crc:
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a message does not match its CRC")
        at = pos + 18
        timestamp = NO_TIMESTAMP
        if magic:
            (timestamp,) = _TIMESTAMP.unpack_from(view, at)
            at += 8
        key, at = _read_field(view, at, stop)
        value, at = _read_field(view, at, stop)
        if at != stop:
            raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a message has another size than it says")
        yield _Message(magic, attributes, offset, timestamp, key, value)
        pos = stop


def _read_field(view: memoryview, at: int, stop: int) -> tuple[bytes | None, int]:
    if stop - at < 4:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a message ends too soon")
    (size,) = _LENGTH.unpack_from(view, at)
    at += 4
    if size < 0:
        return None, at
    if size > stop - at:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a message is shorter than its key and value")
    return bytes(view[at : at + size]), at + size


def _unwrap(wrapper: _Message, limit: int | None) -> Iterator[_Message]:
    codec = wrapper.attributes & CODEC_MASK
    if wrapper.value is None or codec > compression.LZ4:
        raise _invalid(f"a message of magic {wrapper.magic} has codec {codec}, or no value")
    value = wrapper.value
    if codec == compression.LZ4 and wrapper.magic == 0:
        value = _repair_lz4(value)
    most = expanded_max(len(value))
    try:
        expanded = compression.decompress(codec, value, most if limit is None else min(limit, most))
    except BatchError:
        raise
    except WireError as error:
        raise _invalid(str(error)) from None
    empty = True
    for message in _iter_messages(expanded):
        empty = False
        if message.magic != wrapper.magic or message.attributes & CODEC_MASK:
            raise _invalid("a compressed message has messages of another kind in it")
        if wrapper.magic and wrapper.attributes & LOG_APPEND_TIME:
            message.timestamp = wrapper.timestamp
        yield message
    if empty:
        raise _invalid("a compressed message has nothing in it")


def _wrap(header: BatchHeader, records: Iterator[Record], magic: int, first_offset: int, limit: int) -> bytes:
    kind = header.attributes & LOG_APPEND_TIME
    inner = bytearray()
    base = last = -1
    timestamp = NO_TIMESTAMP
    for record in records:
        if base < 0:
            base = record.offset if magic else 0
        inner += _encode(magic, kind, record.offset - base, record.timestamp, record.key, record.value)
        if len(inner) > limit:
            raise compression.too_large(limit)
        last = record.offset
        timestamp = max(timestamp, record.timestamp)
    if last < first_offset:
        return b""  # Compaction took what was asked for; a reader given the rest would ask again for ever.
    value = compression.compress(header.codec, inner)
    if header.codec == compression.LZ4 and magic == 0:
        value = _LZ4_BROKEN_HEADER + value[_LZ4_HEADER_SIZE:]
    return _encode(magic, kind | header.codec, last, timestamp, None, value)


def _encode(
    magic: int, attributes: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None
) -> bytes:
    parts = [bytes((magic, attributes if magic else attributes & CODEC_MASK))]
    if magic:
        parts.append(_TIMESTAMP.pack(timestamp))
    for field in (key, value):
        if field is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            parts.append(_LENGTH.pack(len(field)))
            parts.append(field)
    body = b"".join(parts)
    return _OFFSET_AND_SIZE.pack(offset, len(body) + 4) + _UINT32.pack(crc32(body)) + body


def _repair_lz4(frame: bytes) -> bytes:
    """The frame with the header checksum that its format demands, whatever the writer thought it to be."""
    if len(frame) < _LZ4_HEADER_SIZE:
        return frame
    at = 6 + (8 if frame[4] & 0x08 else 0) + (4 if frame[4] & 0x01 else 0)
    checksum = _xxh32_short(frame[4:at]) >> 8 & 0xFF
    return frame[:at] + bytes((checksum,)) + frame[at + 1 :]


def _xxh32_short(data: bytes) -> int:
    """xxHash of fewer than sixteen bytes, seed 0."""
    mask = 0xFFFFFFFF
    state = 374761393 + len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        state = state + int.from_bytes(data[at : at + 4], "little") * 3266489917 & mask
        state = (state << 17 | state >> 15) * 668265263 & mask
    for byte in data[whole:]:
        state = state + byte * 374761393 & mask
        state = (state << 11 | state >> 21) * 2654435761 & mask
    state = (state ^ state >> 15) * 2246822519 & mask
    state = (state ^ state >> 13) * 3266489917 & mask
    return state ^ state >> 16


def _not_alone() -> BatchError:
    return _invalid("a compressed message must be the only one of its set")


def _invalid(message: str) -> BatchError:
    return BatchError(ErrorCode.INVALID_RECORD, message)
