"""Messages to try: every field of a version filled, with values that are edges more often than not."""

from random import Random
from typing import Any

from penstock.wire import api
from penstock.wire.errors import ErrorCode
from penstock.wire.layout import Field, Layout, WireType, layout_of
from penstock.wire.schema import ApiMessage, Message, TopMessage

API_CLASSES: list[type[ApiMessage]] = [
    cls for key in api.API_MODULES for cls in (api.request_class(key), api.response_class(key))
]
API_VERSIONS = [(cls, v) for cls in API_CLASSES for v in range(cls.min_version, cls.max_version + 1)]

_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint16": (0, 2**16 - 1),
}
_STRINGS = ("", "a", "orders", "zażółć gęślą jaźń", "x" * 126, "y" * 127, "z" * 300)
_TIME_MAX = 253_402_300_799_000
"""The end of the year 9999: kio gives times as datetimes."""


def name_of(case: object) -> str | None:
    """How pytest names a case."""
    return getattr(case, "__name__", None)


def sample(cls: type[TopMessage], version: int, random: Random) -> Any:
    return _structure(layout_of(cls, version), random)


def _structure(layout: Layout, random: Random) -> Message:
    values = {field.name: _field(field, random) for field in layout.fields if field.present}
    return layout.cls(**values)


def _field(field: Field, random: Random) -> Any:
    if field.tag is not None and random.random() < 0.3:
        return field.default
    return _value(field.type, field.name, random)


def _value(wire_type: WireType, name: str, random: Random) -> Any:
    kind = wire_type.kind
    if wire_type.nullable and random.random() < 0.25:
        return None
    if kind == "struct":
        assert wire_type.layout is not None
        return _structure(wire_type.layout, random)
    if kind == "array":
        assert wire_type.element is not None
        counts = (0, 1, 1, 2, 2, 3) if wire_type.element.kind == "struct" else (0, 1, 2, 126, 127, 128)
        return [_value(wire_type.element, name, random) for _ in range(random.choice(counts))]
    if kind in _RANGES:
        return _number(kind, name, random)
    if kind == "string":
        return random.choice(_STRINGS)
    if kind == "uuid":
        return random.randbytes(16)
    if kind == "bool":
        return random.random() < 0.5
    if kind == "float64":
        return random.uniform(-1e9, 1e9)
    return random.randbytes(random.choice((0, 1, 127, 128, 300)))


def _number(kind: str, name: str, random: Random) -> int:
    if kind == "int16" and name.endswith("error_code"):
        return int(random.choice(list(ErrorCode)))
    low, high = _RANGES[kind]
    if kind == "int64" and ("time" in name or name.endswith("_ms")):
        return random.choice((0, 1, 1_700_000_000_000, random.randint(0, _TIME_MAX)))
    return random.choice((low, high, 0, 1, random.randint(low, high), random.randint(low, high)))
