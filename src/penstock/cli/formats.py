"""Records as text: the formats of `consume`.

The format is kcat's. In it stand for themselves, in each record:

    %t topic   %p partition   %o offset   %T timestamp (ms)   %h headers, name=value,...
    %k key     %K its length   %s value    %S its length       %% a percent sign
    %R the length of the value as four bytes, the first of them the highest

A length is -1 where there is no key or value. \\n, \\r, \\t, \\\\ and \\xHH are characters.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import click

from penstock.wire.batch import Record

Write = Callable[[str, int, Record], bytes]
"""Topic, partition and record to what is printed."""

_PARTS = re.compile(rb"%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([^%\\]+)|([%\\])", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"0": b"\0"}
_Piece = Callable[[str, int, Record], bytes]

_FIELDS: dict[bytes, _Piece] = {
    b"t": lambda topic, partition, record: topic.encode(),
    b"p": lambda topic, partition, record: b"%d" % partition,
    b"o": lambda topic, partition, record: b"%d" % record.offset,
    b"T": lambda topic, partition, record: b"%d" % record.timestamp,
    b"k": lambda topic, partition, record: record.key or b"",
    b"K": lambda topic, partition, record: b"%d" % (-1 if record.key is None else len(record.key)),
    b"s": lambda topic, partition, record: record.value or b"",
    b"S": lambda topic, partition, record: b"%d" % (-1 if record.value is None else len(record.value)),
    b"R": lambda topic, partition, record: (-1 if record.value is None else len(record.value)).to_bytes(
        4, "big", signed=True
    ),
    b"h": lambda topic, partition, record: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in record.headers
    ),
    b"%": lambda topic, partition, record: b"%",
}


def compiled(text: str) -> Write:
    """What writes records in this format. UsageError if it has something unknown."""
    pieces: list[_Piece] = []
    for field, code, escape, plain, odd in _PARTS.findall(text.encode()):
        if field:
            if field not in _FIELDS:
                known = " ".join(f"%{name.decode()}" for name in _FIELDS)
                raise click.UsageError(f"--format knows no %{field.decode(errors='replace')}, only {known}.")
            pieces.append(_FIELDS[field])
        elif escape and escape not in _ESCAPES:
            raise click.UsageError(f"--format knows no \\{escape.decode(errors='replace')}.")
        else:
            fixed = bytes.fromhex(code.decode()) if code else _ESCAPES[escape] if escape else plain or odd
            pieces.append(lambda topic, partition, record, fixed=fixed: fixed)  # type: ignore[misc]

    def write(topic: str, partition: int, record: Record) -> bytes:
        return b"".join(piece(topic, partition, record) for piece in pieces)

    return write


def as_value(_topic: str, _partition: int, record: Record) -> bytes:
    return (record.value or b"") + b"\n"


def as_json(topic: str, partition: int, record: Record) -> bytes:
    fields: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": readable(record.key),
        "value": readable(record.value),
        "headers": [[name, readable(value)] for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def readable(data: bytes | None) -> Any:
    """Text where it is text, else what it is in base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def unreadable(value: Any) -> bytes | None:
    """The inverse. ValueError if it is neither."""
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    raise ValueError("it is neither text, null nor base64")
