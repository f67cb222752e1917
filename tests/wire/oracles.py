"""Codecs by others, which say whether ours are right: kio, and kafka-python where kio lacks a version.

Both keep each message in types of their own with nearly the same field names; `same` compares by name, so
that two fields of one type that changed places would not go unnoticed.
"""

import datetime
import importlib
import io
import pkgutil
from functools import cache
from typing import Any, Protocol
from uuid import UUID

from kio.schema.index import PayloadEntityType, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from penstock.wire import api
from penstock.wire.layout import Layout, WireType, layout_of
from penstock.wire.schema import ApiMessage, Message, TopMessage


class Oracle(Protocol):
    def decode(self, data: bytes) -> Any:
        """The message in the oracle's own type; an error unless all of `data` was read."""

    def encode(self, message: Any) -> bytes: ...


class Kio:
    def __init__(self, entity: Any) -> None:
        self.entity = entity

    def decode(self, data: bytes) -> Any:
        message, size = entity_reader(self.entity)(data, 0)
        assert size == len(data)
        return message

    def encode(self, message: Any) -> bytes:
        out = bytearray()
        entity_writer(self.entity)(_Sink(out), message)  # type: ignore[arg-type]
        return bytes(out)


class _Sink:
    """The little of a binary file that kio writes to."""

    def __init__(self, out: bytearray) -> None:
        self.write = out.extend


class KafkaPython:
    def __init__(self, entity: Any, version: int) -> None:
        self.entity = entity
        self.version = version

    def decode(self, data: bytes) -> Any:
        return self.entity.decode(data, version=self.version)

    def encode(self, message: Any) -> bytes:
        message._header = None  # encoding looks for one, though none is wanted
        encoded: bytes = message.encode(version=self.version)
        return encoded


def kio_data(schema: str, version: int) -> Kio:
    return Kio(_load(schema_name_map[schema][version][EntityType.data]))


@cache
def oracle_for(cls: type[ApiMessage], version: int) -> Oracle | None:
    kind: PayloadEntityType = EntityType.request if cls.__name__.endswith("Request") else EntityType.response
    versions = schema_name_map.get(api.API_MODULES[cls.api_key], {})
    if kind in versions.get(version, {}):
        return Kio(_load(versions[version][kind]))
    entity = _kafka_python().get(cls.__name__)
    if entity is not None and version <= entity.max_version:
        return KafkaPython(entity, version)
    return None


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@cache
def _kafka_python() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("admin", "consumer", "metadata", "producer", "sasl"):
        members = vars(importlib.import_module(f"kafka.protocol.{name}"))
        found |= {key: members[key] for key in members if key.endswith(("Request", "Response"))}
    return found


def same(ours: TopMessage, theirs: Any, version: int) -> bool:
    return _same_structure(ours, theirs, layout_of(type(ours), version))


def _same_structure(ours: Message, theirs: Any, layout: Layout) -> bool:
    return all(
        _same(getattr(ours, field.name), _attribute(theirs, field.name), field.type)
        for field in layout.fields
        if field.present
    )


def _same(ours: Any, theirs: Any, wire_type: WireType) -> bool:
    if ours is None or (theirs is None and wire_type.kind != "uuid"):
        return ours is theirs or (theirs is None and ours == -1)
    if wire_type.kind == "struct":
        assert wire_type.layout is not None
        return _same_structure(ours, theirs, wire_type.layout)
    if wire_type.kind == "array":
        element = wire_type.element
        assert element is not None
        return len(ours) == len(theirs) and all(
            _same(a, b, element) for a, b in zip(ours, theirs, strict=True)
        )
    return bool(ours == _plain(theirs))


def _attribute(theirs: Any, name: str) -> Any:
    """kio leaves the unit out of the names of times and durations, and keeps off Python's own names."""
    for candidate in (name, name.removesuffix("_ms"), f"{name}_"):
        if hasattr(theirs, candidate):
            return getattr(theirs, candidate)
    raise AttributeError(f"{type(theirs).__name__} has no {name}")


def _plain(value: Any) -> Any:
    if value is None:
        return bytes(16)
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return getattr(value, "value", value)


class HandWritten:
    """kafka-python's former schemas: written by hand, class by class, before Kafka's own tables were used."""

    def __init__(self, entity: Any) -> None:
        self.entity = entity

    def decode(self, data: bytes) -> Any:
        source = io.BytesIO(data)
        message = self.entity.decode(source)
        assert source.tell() == len(data)
        return message

    def encode(self, message: Any) -> bytes:
        encoded: bytes = message.encode()
        return encoded


@cache
def hand_written() -> dict[tuple[str, int], HandWritten]:
    found = {}
    package = importlib.import_module("kafka.protocol.old")
    for module in pkgutil.iter_modules(package.__path__):
        members = vars(importlib.import_module(f"kafka.protocol.old.{module.name}"))
        for name, entity in members.items():
            base, _, version = name.rpartition("_v")
            if base.endswith(("Request", "Response")) and version.isdigit():
                found[base, int(version)] = HandWritten(entity)
    return found


def leaves(message: Message, layout: Layout) -> list[Any]:
    """All values of a message in wire order, for comparison with what has no names."""
    found: list[Any] = []
    for field in layout.plain:
        found += _leaves(getattr(message, field.name), field.type)
    return found


def _leaves(value: Any, wire_type: WireType) -> list[Any]:
    if wire_type.kind == "struct" and value is not None:
        assert wire_type.layout is not None
        return leaves(value, wire_type.layout)
    if wire_type.kind == "array" and value is not None:
        assert wire_type.element is not None
        return [leaf for item in value for leaf in _leaves(item, wire_type.element)]
    return [value]


def flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat(item)]
    return [value]
