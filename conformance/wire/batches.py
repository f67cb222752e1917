"""Record batches and old message sets, right or wrong on purpose, built without any of Penstock's code."""

import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cramjam
import crc32c
import lz4.frame

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
CODEC_BITS = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
MAGIC_V2 = 2
HEADER_BYTES = 61


@dataclass(frozen=True, slots=True)
class Item:
    """One record to be put into a batch."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


def batch(items: Sequence[Item], **changes: Any) -> bytes:
    """A v2 batch. Changes override header fields by name; `crc` and `length` are right unless given."""
    fields: dict[str, Any] = {
        "base_offset": 0,
        "leader_epoch": -1,
        "magic": MAGIC_V2,
        "codec": 0,
        "flags": 0,
        "last_offset_delta": len(items) - 1,
        "producer_id": -1,
        "producer_epoch": -1,
        "sequence": -1,
        "count": len(items),
        "records": None,
        "crc": None,
        "length": None,
        "first_timestamp": items[0].timestamp if items else 0,
        "max_timestamp": max((item.timestamp for item in items), default=0),
    }
    unknown = changes.keys() - fields.keys()
    assert not unknown, unknown
    fields |= changes
    if fields["records"] is None:
        plain = b"".join(_record(item, at, fields["first_timestamp"]) for at, item in enumerate(items))
        fields["records"] = compress(fields["codec"], plain)
    rest: bytes = struct.pack(
        ">hiqqqhii",
        fields["codec"] | fields["flags"],
        fields["last_offset_delta"],
        fields["first_timestamp"],
        fields["max_timestamp"],
        fields["producer_id"],
        fields["producer_epoch"],
        fields["sequence"],
        fields["count"],
    )
    rest += bytes(fields["records"])
    crc = crc32c.crc32c(rest) if fields["crc"] is None else fields["crc"]
    length = len(rest) + 9 if fields["length"] is None else fields["length"]
    head = struct.pack(">qiibI", fields["base_offset"], length, fields["leader_epoch"], fields["magic"], crc)
    return head + rest


def message(item: Item, magic: int, offset: int = 0, codec: int = 0, crc: int | None = None) -> bytes:
    """One message of magic 0 or 1 with its offset and size in front."""
    body = struct.pack(">bb", magic, codec)
    if magic == 1:
        body += struct.pack(">q", item.timestamp)
    for part in (item.key, item.value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    body = struct.pack(">I", zlib.crc32(body) if crc is None else crc) + body
    return struct.pack(">qi", offset, len(body)) + body


def message_set(items: Sequence[Item], magic: int, codec: int = 0) -> bytes:
    """Messages of magic 0 or 1; with a codec, wrapped into one as old producers do."""
    plain = b"".join(message(item, magic, offset) for offset, item in enumerate(items))
    if codec == 0:
        return plain
    stamp = max(item.timestamp for item in items)
    wrapper = Item(compress(codec, plain, magic), timestamp=stamp)
    return message(wrapper, magic, offset=len(items) - 1 if magic == 1 else 0, codec=codec)


def compress(codec: int, data: bytes, magic: int = MAGIC_V2) -> bytes:
    match codec:
        case 1:
            return gzip.compress(data, mtime=0)
        case 2:
            return _xerial(data)
        case 3:
            # Java reads only frames whose blocks stand alone.
            framed: bytes = lz4.frame.compress(data, block_linked=False)
            return _broken_header_sum(framed) if magic == 0 else framed
        case 4:
            return bytes(cramjam.zstd.compress(data))
    return data


def _xerial(data: bytes) -> bytes:
    out = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for at in range(0, len(data), 32 << 10):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + (32 << 10)]))
        out += struct.pack(">i", len(block)) + block
    return out


def _broken_header_sum(framed: bytes) -> bytes:
    """Kafka's magic 0 summed the LZ4 header with its magic number in front; clients of that age still do."""
    import xxhash

    size = 6 + (8 if framed[4] & 0x08 else 0)
    wrong = (xxhash.xxh32_intdigest(framed[:size]) >> 8) & 0xFF
    return framed[:size] + bytes([wrong]) + framed[size + 1 :]


def _record(item: Item, at: int, first_timestamp: int) -> bytes:
    body = b"\x00" + zigzag(item.timestamp - first_timestamp) + zigzag(at)
    for part in (item.key, item.value):
        body += zigzag(-1) if part is None else zigzag(len(part)) + part
    body += zigzag(len(item.headers))
    for name, value in item.headers:
        body += zigzag(len(name.encode())) + name.encode()
        body += zigzag(-1) if value is None else zigzag(len(value)) + value
    return zigzag(len(body)) + body


def record(
    *,
    size: bytes | None = None,
    time: bytes = b"\0",
    delta: bytes = b"\0",
    key: bytes = b"\1",
    value: bytes = b"\x0avalue",
    headers: bytes = b"\0",
) -> bytes:
    """One record of bytes that need not be right: lengths and numbers come with what they stand for."""
    body = b"\0" + time + delta + key + value + headers
    return (zigzag(len(body)) if size is None else size) + body


def zigzag(number: int) -> bytes:
    """A signed variable-length number."""
    coded = (number << 1) ^ (number >> 63)
    coded &= (1 << 64) - 1
    out = bytearray()
    while coded > 0x7F:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    out.append(coded)
    return bytes(out)


def records(header: dict[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Offset and value of each record of an uncompressed or compressed v2 batch that `split` gave."""
    data = expand(header["attributes"] & CODEC_BITS, header["records"])
    at = 0
    for _ in range(header["count"]):
        size, at = _read_zigzag(data, at)
        end = at + size
        at += 1
        _, at = _read_zigzag(data, at)
        delta, at = _read_zigzag(data, at)
        key_size, at = _read_zigzag(data, at)
        value_size, at = _read_zigzag(data, at + max(key_size, 0))
        yield header["base_offset"] + delta, data[at : at + max(value_size, 0)]
        at = end


def _read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def expand(codec: int, data: bytes) -> bytes:
    """Decompress; raises whatever the codec's library raises when it cannot."""
    match codec:
        case 1:
            return bytes(cramjam.gzip.decompress(data))
        case 2:
            return _expand_snappy(data)
        case 3:
            return bytes(cramjam.lz4.decompress(data))
        case 4:
            return bytes(cramjam.zstd.decompress(data))
    return data


def _expand_snappy(data: bytes) -> bytes:
    if not data.startswith(b"\x82SNAPPY\x00"):
        return bytes(cramjam.snappy.decompress_raw(data))
    out, at = b"", 16
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        out += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return out


HEADER = struct.Struct(">qiibIhiqqqhii")
NAMES = (
    "base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta",
    "first_timestamp", "max_timestamp", "producer_id", "producer_epoch", "sequence", "count",
)  # fmt: skip


def split(data: bytes) -> list[dict[str, Any]]:
    """The whole batches or messages of a records field; a cut-off last one is left out, as clients do."""
    found: list[dict[str, Any]] = []
    at = 0
    while at + 17 <= len(data):
        offset, length = struct.unpack_from(">qi", data, at)
        end = at + 12 + length
        if end > len(data) or length < 5:
            break
        if data[at + 16] == MAGIC_V2:
            header: dict[str, Any] = dict(zip(NAMES, HEADER.unpack_from(data, at), strict=True))
            found.append({**header, "records": data[at + HEADER_BYTES : end]})
        else:
            found.append(
                {"base_offset": offset, "length": length, "magic": data[at + 16], "message": data[at:end]}
            )
        at = end
    return found
