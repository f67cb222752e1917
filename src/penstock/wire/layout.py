"""The layout of a message class on the wire at one version, read from the annotations of `schema`."""

from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import msgspec

from penstock.wire.schema import Message, TopMessage

FIXED = {
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uint16": ("H", 2),
    "float64": ("d", 8),
    "bool": ("?", 1),
    "uuid": ("16s", 16),
}
"""Types of fixed size: their `struct` format and length."""

_VARIABLE = ("string", "bytes", "records")


class WireType(msgspec.Struct, frozen=True):
    """`kind` is a wire type, "array" (then `element` is set) or "struct" (then `layout` is set)."""

    kind: str
    optional: bool = False
    """Null is allowed in some version."""
    nullable: bool = False
    """Null is allowed in this version."""
    element: "WireType | None" = None
    layout: "Layout | None" = None


_ABSENT = WireType("absent")


class Field(msgspec.Struct, frozen=True):
    name: str
    type: WireType
    present: bool
    tag: int | None
    ignorable: bool
    default: Any


class Layout(msgspec.Struct, frozen=True):
    """One structure at one version. `fields` are all of its class, in wire order, present or not."""

    cls: type[Message]
    flexible: bool
    fields: tuple[Field, ...]

    @property
    def plain(self) -> list[Field]:
        return [field for field in self.fields if field.present and field.tag is None]

    @property
    def tagged(self) -> list[Field]:
        """Tagged fields in the order of their tags, which is the order they are written in."""
        tags = [(field.tag, field) for field in self.fields if field.present and field.tag is not None]
        return [field for _, field in sorted(tags, key=lambda pair: pair[0])]


def layout_of(cls: type[TopMessage], version: int) -> Layout:
    """Raises ValueError if the message has no such version."""
    if not cls.min_version <= version <= cls.max_version:
        raise ValueError(f"{cls.__name__} has versions {cls.min_version} to {cls.max_version}, not {version}")
    return _layout(cls, version, version >= cls.flexible_from)


def smallest(wire_type: WireType, flexible: bool) -> int:
    """The least number of bytes that a value takes: it bounds how many elements a buffer can hold."""
    if wire_type.kind in FIXED:
        return FIXED[wire_type.kind][1]
    if wire_type.kind != "struct":
        return 1 if flexible else 2 if wire_type.kind == "string" else 4
    assert wire_type.layout is not None
    if wire_type.nullable:
        return 1
    return sum(smallest(field.type, flexible) for field in wire_type.layout.plain) + flexible


def _layout(cls: type[Message], version: int, flexible: bool) -> Layout:
    prototype = cls()
    annotations = cls.__annotations__
    fields = []
    for name in cls.__struct_fields__:
        annotation, notes = _unwrap(annotations[name])
        present, nullable, tag, ignorable = _read_notes(notes, version)
        wire_type = _wire_type(annotation, notes, version, flexible, nullable) if present else _ABSENT
        fields.append(Field(name, wire_type, present, tag, ignorable, getattr(prototype, name)))
    return Layout(cls, flexible, tuple(fields))


def _unwrap(annotation: Any) -> tuple[Any, tuple[str, ...]]:
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        return inner, tuple(notes)
    return annotation, ()


def _read_notes(notes: tuple[str, ...], version: int) -> tuple[bool, bool, int | None, bool]:
    present = nullable = True
    tag: int | None = None
    ignorable = False
    for note in notes:
        if note == "ignorable":
            ignorable = True
        elif note.startswith("tag "):
            tag = int(note[4:])
        elif note.startswith("nullable "):
            nullable = _within(note[9:], version)
        elif note not in FIXED and note not in _VARIABLE:
            present = _within(note, version)
    return present, nullable, tag, ignorable


def _within(versions: str, version: int) -> bool:
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    first, _, last = versions.partition("-")
    return int(first) <= version <= int(last or first)


def _wire_type(
    annotation: Any, notes: tuple[str, ...], version: int, flexible: bool, nullable: bool
) -> WireType:
    options = get_args(annotation)
    is_optional = NoneType in options
    if is_optional:
        (annotation,) = (option for option in options if option is not NoneType)
        annotation, notes = _unwrap(annotation)
    allows_null = is_optional and nullable
    if notes and (notes[0] in FIXED or notes[0] in _VARIABLE):
        return WireType(notes[0], is_optional, allows_null)
    if get_origin(annotation) is list:
        (item,) = get_args(annotation)
        inner, inner_notes = _unwrap(item)
        element = _wire_type(inner, inner_notes, version, flexible, False)
        return WireType("array", is_optional, allows_null, element=element)
    return WireType("struct", is_optional, allows_null, layout=_layout(annotation, version, flexible))
