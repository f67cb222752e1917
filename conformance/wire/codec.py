"""Encode and decode any message as plain dictionaries, driven by its definition.

Names are those of the definitions (`ThrottleTimeMs`). A field left out of a dictionary takes its default; a
name that the message does not have is an error of the caller's. Decoding must consume every byte.
"""

import struct
from collections.abc import Callable
from typing import Any

from conformance.wire.definitions import Field, Message, within

Value = dict[str, Any]

NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
    "bool": struct.Struct(">?"),
}


class Malformed(Exception):
    """The bytes are not such a message."""


class Raw(bytes):
    """Bytes put on the wire as they are in place of a field, for requests that are wrong on purpose."""


def encode(message: Message, version: int, value: Value) -> bytes:
    out = bytearray()
    _write_fields(out, message.fields, version, message.is_flexible(version), value)
    return bytes(out)


def decode(message: Message, version: int, data: bytes) -> Value:
    reader = _Reader(data)
    try:
        value = reader.fields(message.fields, version, message.is_flexible(version))
    except (struct.error, IndexError, UnicodeDecodeError) as why:
        raise Malformed(f"{message.name} v{version}: {why} at byte {reader.at} of {len(data)}") from why
    if reader.at != len(data):
        raise Malformed(f"{message.name} v{version}: {len(data) - reader.at} bytes left over")
    return value


def varint(number: int) -> bytes:
    """An unsigned variable-length number."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _write_fields(
    out: bytearray, fields: tuple[Field, ...], version: int, flexible: bool, value: Value
) -> None:
    unknown = value.keys() - {field.name for field in fields}
    if unknown:
        raise KeyError(f"no such fields: {sorted(unknown)}")
    tagged: list[tuple[int, bytes]] = []
    for field in fields:
        if not within(version, field.versions):
            continue
        chosen = value.get(field.name, field.default)
        if within(version, field.tagged):
            if chosen != field.default:
                inner = bytearray()
                _write(inner, field, version, flexible, chosen)
                tagged.append((field.tag or 0, bytes(inner)))
        else:
            _write(out, field, version, flexible, chosen)
    if flexible:
        out += varint(len(tagged))
        for tag, data in sorted(tagged):
            out += varint(tag) + varint(len(data)) + data


def _write(out: bytearray, field: Field, version: int, flexible: bool, value: Any) -> None:
    if isinstance(value, Raw):
        out += value
        return
    if field.flexible is not None:
        flexible = flexible and within(version, field.flexible)
    if field.is_array:
        _write_length(out, None if value is None else len(value), 4, flexible)
        for item in value or ():
            _write_item(out, field, field.type[2:], version, flexible, item)
    elif field.is_struct:
        if within(version, field.nullable):
            out += b"\xff" if value is None else b"\x01"
        if value is not None:
            _write_fields(out, field.fields, version, flexible, value)
    else:
        _write_item(out, field, field.type, version, flexible, value)


def _write_item(out: bytearray, field: Field, kind: str, version: int, flexible: bool, value: Any) -> None:
    number = NUMBERS.get(kind)
    if number is not None:
        out += number.pack(value)
    elif kind == "uuid":
        out += value
    elif kind == "string":
        data = None if value is None else value.encode()
        _write_length(out, None if data is None else len(data), 2, flexible)
        out += data or b""
    elif kind in ("bytes", "records"):
        _write_length(out, None if value is None else len(value), 4, flexible)
        out += value or b""
    else:
        _write_fields(out, field.fields, version, flexible, value)


def _write_length(out: bytearray, length: int | None, width: int, flexible: bool) -> None:
    if flexible:
        out += varint(0 if length is None else length + 1)
    else:
        out += struct.pack(">h" if width == 2 else ">i", -1 if length is None else length)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def fields(self, fields: tuple[Field, ...], version: int, flexible: bool) -> Value:
        value: Value = {}
        tags: dict[int, Field] = {}
        for field in fields:
            if not within(version, field.versions):
                continue
            if within(version, field.tagged):
                value[field.name] = field.default
                tags[field.tag or 0] = field
            else:
                value[field.name] = self.field(field, version, flexible)
        if flexible:
            self.tags(tags, version, value)
        return value

    def tags(self, known: dict[int, Field], version: int, value: Value) -> None:
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            end = self.at + size
            field = known.get(tag)
            if field is None:
                raise Malformed(f"tag {tag} is not one of this message's")
            value[field.name] = self.field(field, version, True)
            if self.at != end:
                raise Malformed(f"tag {tag} says {size} bytes and holds {size + self.at - end}")

    def field(self, field: Field, version: int, flexible: bool) -> Any:
        if field.flexible is not None:
            flexible = flexible and within(version, field.flexible)
        if field.is_array:
            count = self.length(4, flexible)
            kind = field.type[2:]
            return (
                None if count is None else [self.item(field, kind, version, flexible) for _ in range(count)]
            )
        if field.is_struct:
            if within(version, field.nullable) and self.number("int8") < 0:
                return None
            return self.fields(field.fields, version, flexible)
        return self.item(field, field.type, version, flexible)

    def item(self, field: Field, kind: str, version: int, flexible: bool) -> Any:
        if kind in NUMBERS:
            return self.number(kind)
        if kind == "uuid":
            return self.take(16)
        read: Callable[[int | None], Any] = lambda size: None if size is None else self.take(size)  # noqa: E731
        if kind == "string":
            data = read(self.length(2, flexible))
            return None if data is None else data.decode()
        if kind in ("bytes", "records"):
            return read(self.length(4, flexible))
        return self.fields(field.fields, version, flexible)

    def length(self, width: int, flexible: bool) -> int | None:
        size = self.varint() - 1 if flexible else self.number("int16" if width == 2 else "int32")
        return None if size < 0 else size

    def number(self, kind: str) -> Any:
        packed = NUMBERS[kind]
        (value,) = packed.unpack_from(self.data, self.at)
        self.at += packed.size
        return value

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise Malformed(f"{size} bytes wanted, {len(self.data) - self.at} left")
        self.at += size
        return self.data[self.at - size : self.at]
