"""Avro and Protobuf bytes to columns, and what is said of bytes that are something else."""

from __future__ import annotations

import base64
import datetime
import functools
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.pandas.types import to_arrow_type

from penstock.pipeline import PipelineError, avro, protobuf
from penstock.pipeline.columns import decode_column
from penstock.pipeline.registry import Registry
from tests.pipeline.conftest import FakeRegistry

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "int"}],
                },
            },
        },
    ],
}
TOKEN = "12345678-1234-5678-1234-567812345678"
AT = datetime.datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=datetime.UTC)


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "note": None if number % 2 else f"note {number}",
        "state": "PAID",
        "before": "NEW",
        "at": AT,
        "day": datetime.date(2026, 3, 4),
        "token": TOKEN,
        "price": Decimal("12.34"),
        "tags": {"a": 1},
        "lines": [{"item": "x", "count": number}],
    }


def encode(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas={}), value)
    return out.getvalue()


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def decode_avro(values: list[bytes | None], settings: avro.Settings) -> list[dict[str, Any]]:
    target = to_arrow_type(avro.spark_type(settings.schema), timezone="UTC")
    made = decode_column(
        pa.array(values, pa.binary()), functools.partial(avro.decoder, settings), target, "value"
    )
    return list(made.to_pylist())


def test_every_kind_of_avro_field_becomes_a_column() -> None:
    settings = avro.Settings(avro.text(ORDER), None, False)
    first, second, nothing = decode_avro([encode(ORDER, order(1)), encode(ORDER, order(2)), None], settings)
    assert first["error"] is None
    assert first["value"] == {**order(1), "tags": [("a", 1)]}
    assert second["value"]["note"] == "note 2"
    assert nothing == {"value": None, "error": None}


def test_bytes_that_are_not_avro_of_the_schema_have_a_reason() -> None:
    settings = avro.Settings(avro.text(ORDER), None, False)
    whole = encode(ORDER, order(1))
    short, long, empty, good = decode_avro([whole[:-3], whole + b"xy", b"", whole], settings)
    assert short["value"] is None and "is not Avro of its schema" in short["error"]
    assert long["error"] == "The value has 2 bytes more than its schema asks for."
    assert empty["value"] is None and empty["error"]
    assert good["error"] is None


def test_values_are_read_with_the_schema_that_they_were_written_with(registry: FakeRegistry) -> None:
    old = {"type": "record", "name": "Event", "fields": [{"name": "id", "type": "int"}]}
    new = {
        **old,
        "fields": [{"name": "id", "type": "long"}, {"name": "kind", "type": "string", "default": "plain"}],
    }
    registry.answers["/schemas/ids/7"] = {"schema": json.dumps(old)}
    registry.answers["/schemas/ids/8"] = {"schema": json.dumps(new)}
    settings = avro.Settings(avro.text(new), registry.url, True)
    found = decode_avro(
        [
            framed(7, encode(old, {"id": 1})),
            framed(8, encode(new, {"id": 2, "kind": "other"})),
            framed(7, encode(old, {"id": 3})),
            framed(9, b"\2"),
            b"\1\0\0\0\7\2",
            b"\0\0",
        ],
        settings,
    )
    assert [one["value"] for one in found[:3]] == [
        {"id": 1, "kind": "plain"},
        {"id": 2, "kind": "other"},
        {"id": 3, "kind": "plain"},
    ]
    assert found[3]["error"] == "The value has schema 9, which the registry does not have."
    assert (
        found[4]["error"] == found[5]["error"] == "The value does not begin as Confluent's wire format does."
    )
    assert registry.asked.count("/schemas/ids/7") == 1


def test_a_registry_that_does_not_answer_is_no_reason_to_give_a_record_up() -> None:
    settings = avro.Settings(avro.text(ORDER), "http://127.0.0.1:1", True)
    with pytest.raises(
        PipelineError, match=r"^The schema registry at http://127.0.0.1:1 cannot be asked: .+\.$"
    ):
        decode_avro([framed(1, b"x")], settings)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("{", "The Avro schema is wrong"),
        (
            {"type": "record", "name": "A", "fields": [{"name": "b", "type": ["int", "string"]}]},
            "union of int",
        ),
        (
            {"type": "record", "name": "A", "fields": [{"name": "next", "type": ["null", "A"]}]},
            "contains itself",
        ),
    ],
)
def test_avro_schemas_without_columns_are_refused(schema: Any, complaint: str) -> None:
    with pytest.raises(PipelineError, match=complaint):
        avro.spark_type(avro.text(schema))


# Protobuf.


def shop_file() -> descriptor_pb2.FileDescriptorProto:
    """message Other {}; message Order {...; message Line {...}}"""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.message_type.add(name="Other")
    message = file.message_type.add(name="Order")
    line = message.nested_type.add(name="Line")
    line.field.add(name="item", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    state = message.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    entry = message.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    message.oneof_decl.add(name="_note")
    for number, (name, kind, label, of) in enumerate(
        (
            ("id", field.TYPE_INT64, field.LABEL_OPTIONAL, ""),
            ("big", field.TYPE_UINT64, field.LABEL_OPTIONAL, ""),
            ("note", field.TYPE_STRING, field.LABEL_OPTIONAL, ""),
            ("state", field.TYPE_ENUM, field.LABEL_OPTIONAL, ".shop.Order.State"),
            ("lines", field.TYPE_MESSAGE, field.LABEL_REPEATED, ".shop.Order.Line"),
            ("tags", field.TYPE_MESSAGE, field.LABEL_REPEATED, ".shop.Order.TagsEntry"),
            ("at", field.TYPE_MESSAGE, field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("raw", field.TYPE_BYTES, field.LABEL_OPTIONAL, ""),
        ),
        1,
    ):
        made = message.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
        if name == "note":
            made.proto3_optional = True
            made.oneof_index = 0
    return file


def order_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(shop_file().SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def decode_protobuf(values: list[bytes | None], settings: protobuf.Settings) -> list[dict[str, Any]]:
    target = to_arrow_type(protobuf.spark_type(settings), timezone="UTC")
    made = decode_column(
        pa.array(values, pa.binary()), functools.partial(protobuf.decoder, settings), target, "value"
    )
    return list(made.to_pylist())


def test_every_kind_of_protobuf_field_becomes_a_column() -> None:
    kind = order_class()
    message = kind(id=5, big=2**64 - 1, note="n", state=1, tags={"a": 1}, raw=b"\xff")
    message.lines.add(item="x")
    message.at.FromDatetime(AT.replace(tzinfo=None))
    settings = protobuf.Settings("shop.Order", protobuf.files_of(kind.DESCRIPTOR), False)
    full, empty, bad, nothing = decode_protobuf([message.SerializeToString(), b"", b"\x08", None], settings)
    assert full["value"] == {
        "id": 5,
        "big": Decimal(2**64 - 1),
        "note": "n",
        "state": "PAID",
        "lines": [{"item": "x"}],
        "tags": [("a", 1)],
        "at": AT,
        "raw": b"\xff",
    }
    # What has no presence has its default; what has it, is absent.
    assert (empty["value"]["id"], empty["value"]["note"], empty["value"]["at"]) == (0, None, None)
    assert bad["value"] is None and bad["error"].startswith("The value is not a shop.Order")
    assert nothing == {"value": None, "error": None}


def test_protobuf_in_confluents_wire_format() -> None:
    kind = order_class()
    data = kind(id=5).SerializeToString()
    files = descriptor_pb2.FileDescriptorSet(
        file=[
            shop_file(),
            descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb),
        ]
    )
    settings = protobuf.Settings("shop.Order", protobuf.files_in(files.SerializeToString()), True)
    good, other, bare = decode_protobuf(
        # One index, zigzag: 1; then the lone zero that stands for the first message, which is another one.
        [framed(3, b"\x02\x02" + data), framed(3, b"\x00" + data), data],
        settings,
    )
    assert good["value"]["id"] == 5
    assert other["error"] == "The value is message [0] of its schema, and shop.Order is [1]."
    assert bare["error"] == "The value does not begin as Confluent's wire format does."


def test_protobuf_descriptors_come_from_a_registry(registry: FakeRegistry) -> None:
    registry.answers["/subjects/orders-value/versions/latest?format=serialized"] = {
        "schemaType": "PROTOBUF",
        "schema": base64.b64encode(shop_file().SerializeToString()).decode(),
    }
    files = Registry(registry.url).protobuf_files("orders-value")
    settings = protobuf.Settings("shop.Order", files, True)
    (found,) = decode_protobuf([framed(3, b"\x02\x02" + order_class()(id=9).SerializeToString())], settings)
    assert found["value"]["id"] == 9
    with pytest.raises(PipelineError, match=r"^The schema registry has no subject 'nobody'\.$"):
        Registry(registry.url).protobuf_files("nobody")
    with pytest.raises(PipelineError, match=r"have no message 'shop\.Nothing'"):
        protobuf.spark_type(settings._replace(message="shop.Nothing"))


@pytest.mark.parametrize("shown", ["host:8081", "[::1", "host:port", "host:99999", "host:0"])
@pytest.mark.parametrize("scheme", ["ftp", "http"])
def test_an_address_that_is_refused_is_shown_without_its_password(scheme: str, shown: str) -> None:
    if (scheme, shown) == ("http", "host:8081"):
        assert Registry(f"{scheme}://somebody:secret@{shown}")
        return
    with pytest.raises(PipelineError) as refused:
        Registry(f"{scheme}://somebody:secret@{shown}")
    assert "secret" not in str(refused.value)
    assert shown in str(refused.value)


def test_a_registry_at_an_address_of_ipv6() -> None:
    with pytest.raises(PipelineError, match=r"^The schema registry at http://\[::1\]:1/x cannot be asked"):
        Registry("http://me:secret@[::1]:1/x/").by_id(1)
