"""Bytes of records as people read them: JSON, Avro, Protobuf, text, or hexadecimal digits.

A value in Confluent's wire format begins with a zero and the number of a schema. Where the console knows a
schema registry it is decoded by that schema, otherwise it is shown raw. Nothing here fails: what cannot be
decoded is shown as it is, with the reason.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable
from decimal import Decimal
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats import FRAME_BYTES
from penstock.pipeline.registry import NoSchemaError, Registry

SHOWN_BYTES_MAX = 64 * 1024
"""Of a larger value the beginning is shown."""
PARSED_BYTES_MAX = 1024 * 1024
"""A larger document is not taken apart: a page has up to hundreds of them."""
SHORT_MAX = 300
"""Characters in a row of a table."""
SCHEMAS_MAX = 1000
WAYS = ("auto", "text", "hex")
Decode = Callable[[bytes], Any]


class Shown(NamedTuple):
    """A key or value on a page."""

    kind: str
    """none, json, avro, protobuf, text or bytes."""
    text: str
    note: str = ""
    """What is missing, or why it is not decoded."""

    line: str = ""
    """The same in one line, if that is not its text."""

    @property
    def short(self) -> str:
        """For a row of a table."""
        line = self.line or self.text
        return line if len(line) <= SHORT_MAX else f"{line[:SHORT_MAX]}…"


class Decoding:
    """Remembers schemas. Threads share it."""

    def __init__(self, registry: str) -> None:
        self._registry = Registry(registry) if registry else None
        self._known: dict[int, tuple[str, Decode | str]] = {}
        self._lock = Lock()

    def shown(self, data: bytes | None, way: str = "auto") -> Shown:
        if data is None:
            return Shown("none", "")
        note = "" if len(data) <= SHOWN_BYTES_MAX else f"The first {SHOWN_BYTES_MAX} of {len(data)} bytes."
        if way == "hex":
            return _bytes(data[:SHOWN_BYTES_MAX], note)
        if way == "text":
            return Shown("text", data[:SHOWN_BYTES_MAX].decode(errors="replace"), note)
        if len(data) >= FRAME_BYTES and data[0] == 0 and self._registry is not None:
            framed = self._framed(data)
            if framed is not None:
                return framed
        if len(data) <= PARSED_BYTES_MAX and (data[:1] in (b"{", b"[") or data[:1].isspace()):
            try:
                return _json(data)
            except (ValueError, RecursionError):
                pass
        return _plain(data[:SHOWN_BYTES_MAX], note)

    def _framed(self, data: bytes) -> Shown | None:
        """None if the number is no schema of the registry: the zero was a part of the value."""
        number = int.from_bytes(data[1:FRAME_BYTES], "big")
        with self._lock:
            known = self._known.get(number)
        if known is None:
            try:
                known = self._learn(number)
            except NoSchemaError:
                return None
            except (PipelineError, ImportError) as error:
                return _bytes(data[:SHOWN_BYTES_MAX], str(error))
            with self._lock:
                if len(self._known) < SCHEMAS_MAX:
                    self._known[number] = known
        kind, decode = known
        if isinstance(decode, str):
            return _bytes(data[:SHOWN_BYTES_MAX], decode)
        try:
            return _document(kind, decode(data), f"schema {number}")
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            note = f"It does not fit its {kind} schema {number}: {reason}"
            return _bytes(data[:SHOWN_BYTES_MAX], note)

    def _learn(self, number: int) -> tuple[str, Decode | str]:
        assert self._registry is not None
        kind, schema, files = self._registry.described(number)
        if kind == "JSON":
            return "json", lambda data: json.loads(data[FRAME_BYTES:])
        if kind == "AVRO":
            return "avro", _avro(schema)
        if kind == "PROTOBUF":
            return "protobuf", _protobuf(files)
        return "bytes", f"Schema {number} is of the unknown kind {kind}."


def _avro(schema: str) -> Decode | str:
    try:
        from fastavro import parse_schema, schemaless_reader
    except ImportError:
        return "Avro is decoded where fastavro is installed: pip install 'penstock[registry]'."
    parsed = parse_schema(json.loads(schema), named_schemas={})
    return lambda data: schemaless_reader(io.BytesIO(data[FRAME_BYTES:]), parsed, None)


def _protobuf(files: tuple[bytes, ...]) -> Decode | str:
    try:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message_factory import GetMessageClass
    except ImportError:
        return "Protobuf is decoded where protobuf is installed: pip install 'penstock[registry]'."
    from penstock.pipeline.protobuf import last_file, message_indexes

    file = last_file(files)

    def decode(data: bytes) -> Any:
        indexes, at = message_indexes(data, FRAME_BYTES)
        messages = list(file.message_types_by_name.values())
        message = messages[indexes[0]]
        for index in indexes[1:]:
            message = message.nested_types[index]
        found = GetMessageClass(message).FromString(data[at:])
        return MessageToDict(found, preserving_proto_field_name=True)

    return decode


def _plain(data: bytes, note: str) -> Shown:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if note and error.start > len(data) - 4:
            return Shown("text", data.decode(errors="ignore"), note)
        return _bytes(data, note)
    if any(ord(one) < 32 and one not in "\t\r\n" for one in text):
        return _bytes(data, note)
    return Shown("text", text, note)


def _bytes(data: bytes, note: str) -> Shown:
    return Shown("bytes", hexadecimal(data), note, data[:SHORT_MAX].hex(" "))


class _AlteredError(Exception):
    """Python's objects do not say what the document says."""


def _json(data: bytes) -> Shown:
    """A document as its writer wrote it: every digit of its numbers, and a name that it has twice. ValueError
    if it is none."""
    try:
        return _document("json", json.loads(data, parse_float=_number, object_pairs_hook=_object))
    except _AlteredError:
        line, text = (msgspec.json.format(data, indent=indent).decode() for indent in (0, 2))
        return _cut("json", line, text, "")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or Decimal(text) != Decimal(repr(number)):
        raise _AlteredError
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _AlteredError
    return found


def _document(kind: str, document: Any, note: str = "") -> Shown:
    line = _written(document)
    try:
        text = msgspec.json.format(line, indent=2)  # many times as fast as json's own
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        text = _written(document, indent=2)  # what only Python's takes: NaN, half of a pair of surrogates
    return _cut(kind, line, text, note)


def _cut(kind: str, line: str, text: str, note: str) -> Shown:
    if len(text) > SHOWN_BYTES_MAX:
        cut = f"The first {SHOWN_BYTES_MAX} of {len(text)} characters."
        text, note = text[:SHOWN_BYTES_MAX], f"{note} · {cut}" if note else cut
    return Shown(kind, text, note, line[: SHORT_MAX + 1])


def _written(document: Any, indent: int | None = None) -> str:
    return json.dumps(document, indent=indent, ensure_ascii=False, default=_other)


def _other(value: Any) -> Any:
    """What JSON has no form for: bytes, dates, decimals."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def hexadecimal(data: bytes) -> str:
    """Sixteen bytes a line, with the letters among them."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{at:06x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)
