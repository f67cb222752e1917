"""Record batches of magic 2, the form in which records are stored and served.

The first half of this module takes a batch as a whole. `check_produced` unpacks its header once and computes
one CRC32C over the rest; it does not look at records. `stamp` assigns offsets. They lie outside the part that
the CRC covers, so the bytes of the producer stay as they are.

The second half looks inside: it builds batches and takes them apart. A broker expands the records that pass
through it once, to skim them when they are produced (`skim`). The rest serves internal topics, transaction
markers, old clients, compaction and tools.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

import msgspec

from penstock.wire import compression, varint
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c
from penstock.wire.errors import BatchError, ErrorCode, WireError

HEADER = Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
LENGTH_FROM = 12
"""The length field counts what follows it."""
CRC_AT = 17
CRC_FROM = 21
"""The CRC covers all from the attributes on: not base offset, length, leader epoch and magic."""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""The base timestamp is when tombstones and markers of this batch may be removed."""

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1

EXPANDED_BYTES_FLOOR = 32 * 1024 * 1024
EXPANDED_BYTES_MAX = 256 * 1024 * 1024
_EXPANSION_MAX = 32
"""The largest size of an expanded batch: see `expanded_max`."""

STAMP = Struct(">qii")
"""Base offset, length and leader epoch, for who knows all three: one call where `stamp` needs two."""

_INT64 = Struct(">q")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_LENGTH = Struct(">8xi")
_ATTRIBUTES = Struct(">h")
_MAGIC_AT = 16
_MAX_TIMESTAMP_AT = 35
_LENGTH_MIN = 14
"""Nothing shorter was ever a message, of any magic."""
_unpack_header = HEADER.unpack_from


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_FROM

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequences wrap to zero after the largest 32-bit number."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header as it stands, unchecked. `struct.error` if the buffer is shorter than one."""
    return BatchHeader._make(_unpack_header(buf, pos))


def check_batch(buf: Buffer, pos: int = 0, end: int | None = None) -> BatchHeader:
    """The header of the batch at `pos`, which must be whole and undamaged. Anybody may have written it.

    Raises BatchError: CORRUPT_MESSAGE for damage, INVALID_RECORD for a header that contradicts itself.
    """
    if end is None:
        end = len(buf)
    if end - pos < HEADER_SIZE:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "the records end inside a batch header")
    header = BatchHeader._make(_unpack_header(buf, pos))
    if header.magic != 2:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"a record batch has magic {header.magic}, not 2")
    stop = pos + header.length + LENGTH_FROM
    if stop > end or header.length < HEADER_SIZE - LENGTH_FROM:
        raise BatchError(
            ErrorCode.CORRUPT_MESSAGE, f"a record batch has an impossible length {header.length}"
        )
    view = buf if type(buf) is memoryview else memoryview(buf)
    if crc32c(view[pos + CRC_FROM : stop]) != header.crc:
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, "a record batch does not match its CRC")
    if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise BatchError(
            ErrorCode.INVALID_RECORD,
            f"a batch of {header.record_count} records has the last offset delta {header.last_offset_delta}",
        )
    return header


def check_produced(buf: Buffer, pos: int = 0, end: int | None = None) -> BatchHeader:
    """Like `check_batch`, for the one batch between `pos` and `end` that a client produced, and with Kafka's
    rules for what clients may write, as far as the header tells.

    Not checked, because it needs the records: that they parse, their offsets and timestamps, and keys on
    compacted topics. See `validation` for those, and for when they are required.
    """
    if end is None:
        end = len(buf)
    if end - pos >= HEADER_SIZE:
        fields = _unpack_header(buf, pos)
        base_offset, length, _, magic, crc, attributes, delta, _, _, producer_id, _, sequence, count = fields
        if (
            magic == 2
            and pos + length + LENGTH_FROM == end
            and delta + 1 == count > 0
            and base_offset == 0
            and not attributes & CONTROL
            and attributes & CODEC_MASK <= compression.ZSTD
            and (sequence >= 0 or producer_id < 0)
            and crc32c((buf if type(buf) is memoryview else memoryview(buf))[pos + CRC_FROM : end]) == crc
        ):
            return BatchHeader._make(fields)
    _require_one_batch(buf, pos, end)
    raise _refusal(check_batch(buf, pos, end), end - pos)


def _require_one_batch(buf: Buffer, pos: int, end: int) -> None:
    """Whether there is a batch at all, told apart as Kafka does: what is missing is invalid, what cannot be
    is corrupt."""
    size = end - pos
    length = _LENGTH.unpack_from(buf, pos)[0] if size >= LENGTH_FROM else 0
    magic = (buf[pos + _MAGIC_AT] ^ 0x80) - 0x80 if size > _MAGIC_AT else 2
    if size >= LENGTH_FROM and (length < _LENGTH_MIN or not 0 <= magic <= 2):
        raise BatchError(ErrorCode.CORRUPT_MESSAGE, f"a batch has the length {length} and magic {magic}")
    if length + LENGTH_FROM > size or size <= _MAGIC_AT:
        raise BatchError(ErrorCode.INVALID_RECORD, "there must be at least one whole record batch")
    if magic != 2:
        raise BatchError(ErrorCode.INVALID_RECORD, f"a record batch has magic {magic}, not 2")


def _refusal(header: BatchHeader, size: int) -> BatchError:
    """Why a client may not write a batch that is whole and undamaged."""
    if header.size != size:
        return BatchError(ErrorCode.INVALID_RECORD, "the records must be exactly one batch")
    if header.record_count != header.last_offset_delta + 1:
        return BatchError(
            ErrorCode.INVALID_RECORD,
            f"the batch has {header.record_count} records for {header.last_offset_delta + 1} offsets",
        )
    if header.base_offset != 0:
        return BatchError(ErrorCode.INVALID_RECORD, f"the base offset must be 0, but is {header.base_offset}")
    if header.is_control:
        return BatchError(ErrorCode.INVALID_RECORD, "clients are not allowed to write control records")
    if header.codec > compression.ZSTD:
        return BatchError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has the number {header.codec}")
    return BatchError(
        ErrorCode.INVALID_RECORD,
        f"sequence number {header.base_sequence} with producer id {header.producer_id}",
    )


def iter_batches(buf: Buffer, pos: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Where each whole batch starts, and its header; nothing is checked. A batch that is cut short at the
    end, as Fetch answers may have it, is left out."""
    if end is None:
        end = len(buf)
    while end - pos >= HEADER_SIZE:
        header = BatchHeader._make(_unpack_header(buf, pos))
        size = header.length + LENGTH_FROM
        if size < HEADER_SIZE or size > end - pos:
            return
        yield pos, header
        pos += size


def stamp(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at `pos` its place in the log. Its CRC does not change."""
    _INT64.pack_into(buf, pos, base_offset)
    _INT32.pack_into(buf, pos + 12, leader_epoch)


def set_log_append_time(buf: bytearray | memoryview, pos: int, timestamp_ms: int) -> None:
    """Make `timestamp_ms` the time of every record of the batch at `pos`: readers then take the maximum
    timestamp of the batch and ignore those of its records."""
    set_max_timestamp(buf, pos, timestamp_ms, log_append_time=True)


def set_max_timestamp(
    buf: bytearray | memoryview, pos: int, timestamp_ms: int, *, log_append_time: bool
) -> None:
    """Replace maximum timestamp and timestamp type of the batch at `pos`, and its CRC with them."""
    (attributes,) = _ATTRIBUTES.unpack_from(buf, pos + CRC_FROM)
    attributes = attributes | LOG_APPEND_TIME if log_append_time else attributes & ~LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(buf, pos + CRC_FROM, attributes)
    _INT64.pack_into(buf, pos + _MAX_TIMESTAMP_AT, timestamp_ms)
    refresh_crc(buf, pos)


def refresh_crc(buf: bytearray | memoryview, pos: int = 0) -> None:
    """Compute the CRC of the batch at `pos` anew, after something that it covers was changed."""
    (length,) = _LENGTH.unpack_from(buf, pos)
    crc = crc32c(memoryview(buf)[pos + CRC_FROM : pos + LENGTH_FROM + length])
    _UINT32.pack_into(buf, pos + 17, crc)


def assemble(header: BatchHeader, block: Buffer) -> bytearray:
    """A batch of this header and this records block, already in the codec that the attributes name. Length
    and CRC are computed."""
    out = bytearray(HEADER_SIZE)
    out += block
    HEADER.pack_into(out, 0, *header._replace(length=len(out) - LENGTH_FROM, magic=2, crc=0))
    refresh_crc(out)
    return out


RecordHeaders = tuple[tuple[str, bytes | None], ...]


class Record(msgspec.Struct, frozen=True, gc=False):
    offset: int = 0
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: RecordHeaders = ()


RawRecord = tuple[int, int, int, int, int, int, int]
"""Timestamp delta, offset delta, and where the record keeps its key, value and headers: start and end of the
key, start and end of the value, start of the headers. What is absent ends before it starts."""


def expanded_max(size: int) -> int:
    """How large the records of a compressed batch of `size` bytes may be.

    32 MiB, or 32 times the batch where that is more, up to 256 MiB. Text compresses by 5 to 20, so that even
    a batch of the usual greatest size (1 MiB) is well within it, and a small batch of records that are all
    alike, which may compress by thousands, has the floor. A larger one is not expanded: a producer is
    answered MESSAGE_TOO_LARGE, upon which Java's splits the batch. The bound depends on nothing but the
    batch, so a batch that was accepted once can be expanded later. (Kafka bounds single records, by a
    setting, and by default only by the size of an array.)
    """
    return min(max(EXPANDED_BYTES_FLOOR, _EXPANSION_MAX * size), EXPANDED_BYTES_MAX)


def records_block(buf: Buffer, pos: int, header: BatchHeader, limit: int | None = None) -> bytes:
    """The records of the batch at `pos`, taken out of their codec. WireError if they cannot be; BatchError
    with MESSAGE_TOO_LARGE if they would exceed `expanded_max` or, before and after, a `limit`."""
    if limit is not None and header.length > limit + HEADER_SIZE - LENGTH_FROM:
        raise compression.too_large(limit)
    return bytes(open_block(buf, pos, header, limit))


def open_block(buf: Buffer, pos: int, header: BatchHeader, limit: int | None = None) -> Buffer:
    """Like `records_block`, without a copy or a limit if there is no codec."""
    block = buf[pos + HEADER_SIZE : pos + LENGTH_FROM + header.length]
    codec = header.attributes & CODEC_MASK
    if codec == compression.NONE:
        return block
    most = expanded_max(header.size)
    return compression.decompress(codec, block, most if limit is None else min(limit, most))


def iter_records(buf: Buffer, pos: int = 0, limit: int | None = None) -> Iterator[Record]:
    """The records of the batch at `pos`, control records too, with the offsets and timestamps that consumers
    see. WireError if they are malformed. The CRC is not checked."""
    header = read_header(buf, pos)
    data = records_block(buf, pos, header, limit)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    for timestamp_delta, offset_delta, key_at, key_end, value_at, value_end, headers_at in iter_raw(
        data, header.record_count
    ):
        yield Record(
            base_offset + offset_delta,
            base_timestamp + timestamp_delta if append_time is None else append_time,
            data[key_at:key_end] if key_end >= key_at else None,
            data[value_at:value_end] if value_end >= value_at else None,
            read_headers(data, headers_at) if data[headers_at] else (),
        )


def iter_raw(data: Buffer, count: int) -> Iterator[RawRecord]:
    """Walk over exactly `count` records that fill `data`. WireError where they do not.

    Numbers of one byte, which nearly all are, are read in place: a call for each would double the time.
    """
    pos, end = 0, len(data)
    read = varint.read_zigzag_32
    try:
        for _ in range(count):
            size = data[pos]
            size, pos = (size >> 1 ^ -(size & 1), pos + 1) if size < 128 else read(data, pos)
            stop = pos + size
            if size < 6 or stop > end:
                raise WireError(f"a record claims {size} bytes")
            pos += 1  # attributes of a record, all unused
            when = data[pos]
            when, pos = (when >> 1 ^ -(when & 1), pos + 1) if when < 128 else varint.read_zigzag(data, pos)
            offset = data[pos]
            offset, pos = (offset >> 1 ^ -(offset & 1), pos + 1) if offset < 128 else read(data, pos)
            size = data[pos]
            size, key_at = (size >> 1 ^ -(size & 1), pos + 1) if size < 128 else read(data, pos)
            pos = key_end = key_at + size
            if size < 0:
                key_end, pos = key_at - 1, key_at
            size = data[pos]
            size, value_at = (size >> 1 ^ -(size & 1), pos + 1) if size < 128 else read(data, pos)
            pos = value_end = value_at + size
            if size < 0:
                value_end, pos = value_at - 1, value_at
            if pos >= stop:
                raise WireError("a record is shorter than its key and value")
            headers_at = pos
            pos = skip_headers(data, pos, stop) if data[pos] else pos + 1
            if pos != stop:
                raise WireError("a record has another size than it says")
            yield when, offset, key_at, key_end, value_at, value_end, headers_at
    except IndexError:
        raise WireError("the records end too soon") from None
    if pos != end:
        raise WireError("there are more records than the batch says")


def read_headers(data: bytes, pos: int) -> RecordHeaders:
    count, pos = varint.read_zigzag(data, pos)
    if count <= 0:
        return ()
    headers = []
    try:
        for _ in range(count):
            size, pos = varint.read_zigzag(data, pos)
            key = str(data[pos : pos + size], "utf-8")
            size, pos = varint.read_zigzag(data, pos + size)
            value = None if size < 0 else data[pos : pos + size]
            pos += max(size, 0)
            headers.append((key, value))
    except UnicodeDecodeError:
        raise WireError("the key of a record header is not UTF-8") from None
    return tuple(headers)


def build_batch(
    records: Iterable[Record],
    *,
    codec: int = compression.NONE,
    level: int | None = None,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
) -> bytearray:
    """A batch of these records, whose offsets must rise. Offsets may have holes, and the batch may begin
    before its first record and end after its last, as compaction leaves it; without records both must be
    given."""
    records = list(records)
    base_offset = records[0].offset if base_offset is None else base_offset
    last_offset = records[-1].offset if last_offset is None else last_offset
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    block = b"".join(encode_record(record, base_offset, base_timestamp) for record in records)
    attributes = codec | TRANSACTIONAL * transactional | CONTROL * control
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return assemble(header, compression.compress(codec, block, level))


def encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    zigzag = varint.zigzag
    parts = [
        b"\0",
        zigzag(record.timestamp - base_timestamp),
        zigzag(record.offset - base_offset),
        *_field(record.key),
        *_field(record.value),
        zigzag(len(record.headers)),
    ]
    for key, value in record.headers:
        parts += _field(key.encode())
        parts += _field(value)
    body = b"".join(parts)
    return zigzag(len(body)) + body


def recompress(header: BatchHeader, block: Buffer, codec: int, level: int | None = None) -> bytearray:
    """The batch in another codec, of its records block out of any. The block is moved whole: no record is
    touched."""
    attributes = header.attributes & ~CODEC_MASK | codec
    return assemble(header._replace(attributes=attributes), compression.compress(codec, block, level))


def _field(value: bytes | None) -> tuple[bytes, ...]:
    return (varint.NULL,) if value is None else (varint.zigzag(len(value)), value)


def skip_headers(data: Buffer, pos: int, stop: int) -> int:
    """Where the headers that begin at `pos` end. WireError or IndexError if that is beyond `stop`."""
    read = varint.read_zigzag_32
    count, pos = read(data, pos)
    if count < 0 or 2 * count > stop - pos:
        raise WireError(f"a record claims {count} headers")
    for _ in range(count):
        size, pos = read(data, pos)
        if size < 0 or pos + size > stop:
            raise WireError(f"the key of a record header claims {size} bytes")
        size, pos = read(data, pos + size)
        pos += max(size, 0)
        if pos > stop:
            raise WireError(f"a record header claims {size} bytes")
    return pos
