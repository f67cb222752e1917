"""The contents of a snapshot's frame, made from the fields that `StoredImage` declares.

Scalars are stored as they are and left out if they have their default. The values of a mapping are listed if
they know their keys (`ListedBy`), else its items: (key, value), or (part, part, value) if a key is a tuple.
"""

from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Any, NamedTuple, get_args, get_origin

import msgspec
from msgspec import structs

from penstock.metadata.image import ClusterImage, ListedBy, StoredImage


class SnapshotBody(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A full image, or, once a later snapshot replaced it, a stub that keeps version and floor only."""

    version: int
    floor: int
    stub: bool = False


class _Field(NamedTuple):
    """One field of the image: its type and default in a snapshot, and the way there and back."""

    name: str
    stored: Any
    default: Any
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


def _field(name: str, declared: Any, default: Any) -> _Field:
    marks = getattr(declared, "__metadata__", ())
    if marks:
        return _listed(name, declared.__origin__, marks[0])
    if get_origin(declared) is Mapping:
        return _itemised(name, declared)
    return _Field(name, declared, default, _same, _same)


def _listed(name: str, declared: Any, by: ListedBy) -> _Field:
    _key, value = get_args(declared)
    attribute = by.key
    return _Field(
        name,
        GenericAlias(list, value),
        [],
        lambda mapping: list(mapping.values()),
        lambda values: {getattr(one, attribute): one for one in values},
    )


def _itemised(name: str, declared: Any) -> _Field:
    key, value = get_args(declared)
    if get_origin(key) is not tuple:
        pairs = GenericAlias(list, GenericAlias(tuple, (key, value)))
        return _Field(name, pairs, [], lambda mapping: list(mapping.items()), dict)
    return _Field(
        name,
        GenericAlias(list, GenericAlias(tuple, (*get_args(key), value))),
        [],
        lambda mapping: [(*parts, one) for parts, one in mapping.items()],
        lambda items: {tuple(parts): one for *parts, one in items},
    )


def _same(value: Any) -> Any:
    return value


_FIELDS = tuple(
    _field(field.name, StoredImage.__annotations__[field.name], field.default)
    for field in structs.fields(StoredImage)
    if field.name not in SnapshotBody.__struct_fields__
)
_Body: type[Any] = msgspec.defstruct(
    "_Body",
    [(field.name, field.stored, field.default) for field in _FIELDS],
    bases=(SnapshotBody,),
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
)
decode_body: Callable[[memoryview], SnapshotBody] = msgspec.msgpack.Decoder(_Body).decode


def snapshot_of(image: ClusterImage, floor: int) -> SnapshotBody:
    packed = {field.name: field.pack(getattr(image, field.name)) for field in _FIELDS}
    body: SnapshotBody = _Body(version=image.version, floor=floor, **packed)
    return body


def image_in(body: SnapshotBody) -> ClusterImage:
    """The image that a snapshot holds, without the fields that are derived."""
    stored = {field.name: field.unpack(getattr(body, field.name)) for field in _FIELDS}
    return ClusterImage(version=body.version, **stored)
