"""Variable-length integers: unsigned (lengths and tags of flexible messages) and zigzag (records)."""

from penstock.wire.buffers import Buffer
from penstock.wire.errors import WireError

SMALL = tuple(bytes((value,)) for value in range(128))
"""The encodings of one byte, ready made: nearly all lengths are below 127."""


NULL = b"\x01"
"""The zigzag form of -1, which is the length of what is absent."""


def unsigned(value: int) -> bytes:
    """Encode a value of up to 32 bits."""
    return SMALL[value] if value < 128 else _large(value)


def _large(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def unsigned_rest(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """The value whose first byte, already read, said that more follow; and where it ends."""
    value = first & 127
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
        shift += 7
        if shift > 28:
            raise WireError("a variable-length integer has more than five bytes")


def read_unsigned(buf: Buffer, pos: int) -> tuple[int, int]:
    first = buf[pos]
    pos += 1
    return (first, pos) if first < 128 else unsigned_rest(buf, pos, first)


def skip_tags(buf: Buffer, pos: int) -> int:
    """Where the tagged fields that start at `pos` end. They are skipped, not kept."""
    try:
        count, pos = read_unsigned(buf, pos)
        for _ in range(count):
            _, pos = read_unsigned(buf, pos)
            size, pos = read_unsigned(buf, pos)
            pos += size
    except IndexError:
        pos = len(buf) + 1
    if pos > len(buf):
        raise WireError("a tagged field is longer than the message")
    return pos


def zigzag(value: int) -> bytes:
    """Encode a signed value of up to 64 bits, as record fields are."""
    value = value << 1 ^ value >> 63
    return SMALL[value] if value < 128 else _large(value)


def read_zigzag(buf: Buffer, pos: int) -> tuple[int, int]:
    """Decode a signed value of up to 64 bits. IndexError if the buffer ends inside it."""
    byte = buf[pos]
    pos += 1
    value = byte & 127
    shift = 7
    while byte > 127:
        if shift > 63:
            raise WireError("a variable-length integer has more than ten bytes")
        byte = buf[pos]
        pos += 1
        value |= (byte & 127) << shift
        shift += 7
    return value >> 1 ^ -(value & 1), pos


def read_zigzag_32(buf: Buffer, pos: int) -> tuple[int, int]:
    """Decode a signed value of up to five bytes, as lengths and offsets of records are."""
    value, pos = read_unsigned(buf, pos)
    return value >> 1 ^ -(value & 1), pos
