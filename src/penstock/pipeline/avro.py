"""Avro in Python workers: the types of a schema, and a decoder by fastavro."""

import datetime
import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats import FRAME_BYTES, BadRecordError, Decoder
from penstock.pipeline.registry import NoSchemaError, Registry

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

Schema = Any
"""A schema as fastavro has it: dicts, lists and names."""
SCHEMAS_MAX = 10_000
"""Schemas of a registry that a worker remembers: far more than a topic was ever written with."""


class Settings(NamedTuple):
    schema: str
    registry: str | None
    confluent: bool


def text(schema: str | dict[str, Any]) -> str:
    """The schema as text, which must be a schema."""
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
        _parse(found)
        return json.dumps(found)
    except Exception as error:
        raise PipelineError(f"The Avro schema is wrong: {error}.") from None


def _parse(schema: Any) -> Schema:
    from fastavro import parse_schema

    return parse_schema(schema, named_schemas={})


# Types.


def spark_type(schema: str) -> "DataType":
    return _Types().of(json.loads(schema))


class _Types:
    """Walks a schema; names are remembered, because a type is written out only where it comes first."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def of(self, schema: Any) -> "DataType":
        from pyspark.sql import types as t

        simple: dict[str, DataType] = {
            "boolean": t.BooleanType(), "int": t.IntegerType(), "long": t.LongType(),
            "float": t.FloatType(), "double": t.DoubleType(), "bytes": t.BinaryType(),
            "string": t.StringType(), "null": t.NullType(),
        }  # fmt: skip
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return simple[schema] if schema in simple else self._named_type(schema)
        logical = self._logical(schema)
        if logical is not None:
            return logical
        match schema["type"]:
            case "record" | "error":
                return self._record(schema)
            case "enum":
                self._remember(schema)
                return t.StringType()
            case "fixed":
                self._remember(schema)
                return t.BinaryType()
            case "array":
                return t.ArrayType(self.of(schema["items"]))
            case "map":
                return t.MapType(t.StringType(), self.of(schema["values"]))
            case other:
                return self.of(other)

    def _logical(self, schema: dict[str, Any]) -> "DataType | None":
        from pyspark.sql import types as t

        match schema.get("logicalType"), schema["type"]:
            case "date", "int":
                return t.DateType()
            case (("timestamp-millis" | "timestamp-micros"), "long"):
                return t.TimestampType()
            case (("local-timestamp-millis" | "local-timestamp-micros"), "long"):
                return t.TimestampNTZType()
            case "time-millis", "int":
                return t.LongType()
            case "time-micros", "long":
                return t.LongType()
            case "uuid", ("string" | "fixed"):
                self._remember(schema)
                return t.StringType()
            case "decimal", ("bytes" | "fixed"):
                self._remember(schema)
                return t.DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
        return None

    def _record(self, schema: dict[str, Any]) -> "DataType":
        from pyspark.sql.types import StructField, StructType

        name = self._remember(schema)
        self._open.append(name)
        fields = [StructField(one["name"], self.of(one["type"])) for one in schema["fields"]]
        self._open.pop()
        return StructType(fields)

    def _remember(self, schema: dict[str, Any]) -> str:
        name = str(schema.get("name", ""))
        self._named[name.rpartition(".")[2]] = schema
        return name.rpartition(".")[2]

    def _named_type(self, name: str) -> "DataType":
        short = name.rpartition(".")[2]
        if short in self._open:
            raise PipelineError(f"The Avro record {name!r} contains itself, which no Spark column can.")
        if short not in self._named:
            raise PipelineError(f"The Avro schema uses {name!r}, which it does not define.")
        return self.of(self._named[short])

    def _union(self, branches: list[Any]) -> "DataType":
        from pyspark.sql.types import NullType

        kinds = [one for one in branches if one != "null"]
        for numbers in (["int", "long"], ["float", "double"]):
            if sorted(map(str, kinds)) == numbers:
                return self.of(numbers[1])
        if len(kinds) > 1:
            raise PipelineError(
                f"An Avro union of {', '.join(map(_name_of, kinds))} has no Spark type;"
                " one of null and another type has."
            )
        return self.of(kinds[0]) if kinds else NullType()


def _name_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema.get("name", schema.get("type")))


# Values.

Convert = Callable[[Any], Any]


def decoder(settings: Settings) -> Decoder:
    """Decodes one value. Made once in each worker."""
    from fastavro import schemaless_reader

    reader = _parse(json.loads(settings.schema))
    convert = _Converters().of(json.loads(settings.schema)) or _same
    writers: dict[int, Schema] = {}
    registry = Registry(settings.registry) if settings.registry else None

    def writer_of(number: int) -> Schema:
        assert registry is not None
        try:
            found = registry.by_id(number)
        except NoSchemaError:
            raise BadRecordError(f"has schema {number}, which the registry does not have.") from None
        try:
            writer = _parse(json.loads(found))
        except Exception:
            raise BadRecordError(f"has schema {number}, which is not an Avro schema.") from None
        if len(writers) < SCHEMAS_MAX:
            writers[number] = writer
        return writer

    def decode(data: bytes) -> Any:
        stream = io.BytesIO(data)
        writer = reader
        if settings.confluent:
            number = schema_number(data)
            stream.seek(FRAME_BYTES)
            if registry is not None:
                writer = writers.get(number) or writer_of(number)
        try:
            value = schemaless_reader(stream, writer, reader if writer is not reader else None)
        except Exception as error:
            raise BadRecordError(f"is not Avro of its schema: {_reason(error)}.") from None
        if stream.tell() != len(data):
            raise BadRecordError(f"has {len(data) - stream.tell()} bytes more than its schema asks for.")
        try:
            return convert(value)
        except (ValueError, OverflowError) as error:
            raise BadRecordError(f"holds what its schema does not allow: {error}.") from None

    return decode


def schema_number(data: bytes) -> int:
    """Of a value in Confluent's wire format."""
    if len(data) < FRAME_BYTES or data[0] != 0:
        raise BadRecordError("does not begin as Confluent's wire format does.")
    return int.from_bytes(data[1:FRAME_BYTES], "big")


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it ends too early"
    return " ".join(str(error).split()) or type(error).__name__


def _same(value: Any) -> Any:
    return value


class _Converters:
    """Conversions from fastavro's values to Arrow's, where the two differ. None: they are the same."""

    def __init__(self) -> None:
        self._named: dict[str, Convert | None] = {}

    def of(self, schema: Any) -> Convert | None:
        if isinstance(schema, list):
            kinds = [one for one in schema if one != "null"]
            return _nullable(self.of(kinds[0])) if len(kinds) == 1 else None
        if isinstance(schema, str):
            return self._named.get(schema.rpartition(".")[2])
        made = self._made(schema)
        if "name" in schema:
            self._named[str(schema["name"]).rpartition(".")[2]] = made
        return made

    def _made(self, schema: dict[str, Any]) -> Convert | None:
        logical = schema.get("logicalType")
        if logical == "uuid":
            return str
        if logical in ("time-millis", "time-micros"):
            return _time_micros
        kind = schema["type"]
        if kind in ("record", "error"):
            fields = [(one["name"], self.of(one["type"])) for one in schema["fields"]]
            return _record([(name, convert) for name, convert in fields if convert is not None])
        if kind == "array":
            item = self.of(schema["items"])
            return None if item is None else lambda values: [item(one) for one in values]
        if kind == "map":
            inner = self.of(schema["values"]) or _same
            return lambda values: [(key, inner(value)) for key, value in values.items()]
        return self.of(kind) if isinstance(kind, dict | list) else None


def _nullable(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _record(fields: list[tuple[str, Convert]]) -> Convert | None:
    if not fields:
        return None

    def convert(record: Any) -> Any:
        for name, one in fields:
            record[name] = one(record[name])
        return record

    return convert


def _time_micros(value: datetime.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
