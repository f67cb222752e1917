"""Properties of the codec that hold for every message, and what it does with bytes that are none."""

import tracemalloc
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.api.create_topics import CreateTopicsRequest
from penstock.wire.api.fetch import FetchRequest
from penstock.wire.api.metadata import MetadataRequest, MetadataResponse
from penstock.wire.codec import decode, encode
from penstock.wire.errors import WireError
from penstock.wire.layout import Layout, WireType, layout_of
from penstock.wire.schema import ApiMessage, Message
from tests.wire.samples import API_CLASSES, API_VERSIONS, name_of, sample

_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=200),
    "records": st.binary(max_size=200),
    "uuid": st.binary(min_size=16, max_size=16),
}


def structures(layout: Layout) -> st.SearchStrategy[Message]:
    return st.builds(
        layout.cls, **{field.name: values(field.type) for field in layout.fields if field.present}
    )


def values(wire_type: WireType) -> st.SearchStrategy[Any]:
    strategy: st.SearchStrategy[Any]
    if wire_type.kind == "struct":
        assert wire_type.layout is not None
        strategy = structures(wire_type.layout)
    elif wire_type.kind == "array":
        assert wire_type.element is not None
        strategy = st.lists(values(wire_type.element), max_size=3)
    else:
        strategy = _SCALARS[wire_type.kind]
    return st.none() | strategy if wire_type.nullable else strategy


@given(st.data())
def test_what_is_written_is_read(data: st.DataObject) -> None:
    cls, version = data.draw(st.sampled_from(API_VERSIONS))
    message = data.draw(structures(layout_of(cls, version)))
    assert isinstance(message, cls)
    encoded = encode(message, version)
    assert decode(cls, version, encoded) == (message, len(encoded))


@given(st.sampled_from(API_VERSIONS), st.binary(max_size=300))
def test_random_bytes_are_read_or_refused(case: tuple[type[ApiMessage], int], data: bytes) -> None:
    cls, version = case
    try:
        message, end = decode(cls, version, data)
    except WireError:
        return
    assert end <= len(data)
    encode(message, version)


@pytest.mark.parametrize("cls", API_CLASSES, ids=name_of)
def test_damaged_messages_are_read_or_refused(cls: type[ApiMessage]) -> None:
    """Cut short, or with bytes changed; at the first and last version and the first that is flexible."""
    random = Random(cls.__name__)
    for version in {cls.min_version, cls.max_version, min(cls.flexible_from, cls.max_version)}:
        for _ in range(6):
            encoded = encode(sample(cls, version, random), version)
            for _ in range(8):
                damaged = bytearray(encoded[: random.randint(0, len(encoded))])
                for _ in range(random.randint(0, 3)):
                    if damaged:
                        damaged[random.randrange(len(damaged))] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
                try:
                    decode(cls, version, damaged)
                except WireError:
                    continue


@pytest.mark.parametrize("cls", API_CLASSES, ids=name_of)
def test_every_cut_is_refused(cls: type[ApiMessage]) -> None:
    for version in {cls.min_version, cls.max_version}:
        encoded = encode(sample(cls, version, Random(7)), version)
        for end in {0, 1, len(encoded) // 2, len(encoded) - 1}:
            if not 0 <= end < len(encoded):
                continue
            with pytest.raises(WireError):
                decode(cls, version, encoded[:end])


@pytest.mark.parametrize(
    ("cls", "version", "data"),
    [
        (MetadataRequest, 1, b"\x7f\xff\xff\xff"),
        (MetadataRequest, 9, b"\xff\xff\xff\xff\x0f"),
        (MetadataRequest, 9, b"\xff\xff\xff\xff\xff\xff\xff\x0f"),
        (MetadataRequest, 1, b"\0\0\0\1\x7f\xff"),
        (MetadataResponse, 0, b"\x7f\xff\xff\xff" * 3),
        (CreateTopicsRequest, 2, b"\0\0\0\1\0\1t\0\0\0\1\0\1\x7f\xff\xff\xff"),
        (FetchRequest, 12, bytes(20) + b"\xff\xff\xff\xff\x07" * 10),
    ],
)
def test_a_huge_count_costs_nothing(cls: type[ApiMessage], version: int, data: bytes) -> None:
    encode(cls(), version)
    with pytest.raises(WireError):
        decode(cls, version, data)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(cls, version, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
