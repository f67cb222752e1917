"""The formats of keys and values: how bytes become columns, and the reason if they cannot.

Spark runs Text and JSON as expressions in Java. Avro and Protobuf need a jar there that is not published for
every Spark (there is none for Protobuf). So Python workers decode them, a column at a time, with fastavro and
protobuf, which are compiled libraries. No record becomes null because it is bad.
"""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_PARSED, _BAD, _ONCE = "__parsed", "__bad", "__once"
FRAME_BYTES = 5
"""Confluent's wire format: a zero, and the number of the schema in four bytes."""


class Text:
    """UTF-8."""

    def decode(self, frame: "DataFrame", column: str, error: str) -> "DataFrame":
        from pyspark.sql import functions as f

        text = f.col(column).cast("string")
        valid = f.is_valid_utf8(text)
        return frame.withColumns(
            {column: f.when(valid, text), error: f.when(~valid, f.lit(f"The {column} is not UTF-8."))}
        )


class Json:
    """One JSON object with the fields of a schema, as DDL text or a StructType.

    Fields that the schema lacks are left out, and fields that a record lacks are null, unless the schema
    says `not null`. A field that does not fit its type makes the record a bad one. `confluent`: the JSON is
    behind the five bytes of Confluent's wire format.
    """

    def __init__(self, schema: "str | StructType", *, confluent: bool = False) -> None:
        self._schema = schema
        self._confluent = confluent

    def decode(self, frame: "DataFrame", column: str, error: str) -> "DataFrame":
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField, StructType

        schema = self._struct()
        data = f.col(column)
        framed = f.lit(True)
        if self._confluent:
            framed = (f.length(data) >= FRAME_BYTES) & (f.substring(data, 1, 1) == f.lit(b"\0"))
            data = f.expr(f"substring(`{column}`, {FRAME_BYTES + 1})")
        text = data.cast("string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}
        wide = StructType([*schema.fields, StructField(_BAD, StringType())])
        # The random number keeps Spark from parsing twice: no filter moves below what is not deterministic.
        frame = frame.withColumns({_PARSED: f.from_json(text, wide, options), _ONCE: f.rand(0)})
        parsed = f.col(_PARSED)
        # from_json takes the first value of a text and leaves the rest unread; an array of them has no rest,
        # unless the text itself ends the array: then what comes behind the text is not counted either.
        alone = f.json_array_length(f.concat(f.lit("["), text, f.lit("]"))) == 1
        within = f.json_array_length(f.concat(f.lit("["), text, f.lit(",0]"))) == 2
        alone = alone & (~f.contains(text, f.lit("]")) | within)
        object_like = f.ltrim(text).startswith("{")
        reason = f.when(f.col(column).isNull(), f.lit(None).cast("string"))
        for holds, complaint in (
            (framed, f.lit(f"The {column} does not begin as Confluent's wire format does.")),
            (f.is_valid_utf8(text), f.lit(f"The {column} is not UTF-8.")),
            (alone & object_like & parsed.isNotNull(), f.lit(f"The {column} is not one JSON object.")),
            (parsed[_BAD].isNull(), _misfits(schema, parsed, text, column)),
            *(
                (given, f.lit(f"The {column} has no {path!r}, which is required."))
                for path, given in _required(schema, parsed)
            ),
        ):
            reason = reason.when(~f.coalesce(holds, f.lit(False)), complaint)
        frame = frame.withColumn(error, f.when(f.col(_ONCE) >= 0, reason))
        whole = f.struct(*(parsed[name].alias(name) for name in schema.fieldNames()))
        good = f.col(error).isNull() & f.col(column).isNotNull()
        return frame.withColumn(column, f.when(good, whole)).drop(_PARSED, _ONCE)

    def _struct(self) -> "StructType":
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        from penstock.pipeline.errors import sentence

        if isinstance(self._schema, StructType):
            return self._schema
        try:
            made = StructType.fromDDL(self._schema)
        except PySparkException as error:
            raise PipelineError(f"The JSON schema {self._schema!r} is wrong: {sentence(error)}") from None
        if not isinstance(made, StructType):
            raise PipelineError(f"The JSON schema {self._schema!r} is not one of an object's fields.")
        return made


def _misfits(schema: "StructType", parsed: "Column", text: "Column", column: str) -> "Column":
    """The fields that are in the text and not in what was made of it, if any can be told."""
    from pyspark.sql import functions as f

    suspects = [
        f.when(
            parsed[field.name].isNull() & f.get_json_object(text, f"$['{field.name}']").isNotNull(),
            f.lit(f"{field.name} ({field.dataType.simpleString()})"),
        )
        for field in schema.fields
    ]
    named = f.array_join(f.array_compact(f.array(*suspects)), ", ")
    detail = f.when(f.length(named) > 0, f.concat(f.lit(": "), named))
    return f.concat(f.lit(f"The {column} does not fit the schema"), f.coalesce(detail, f.lit("")), f.lit("."))


def _required(
    schema: "StructType", value: "Column", prefix: str = "", given: "Column | None" = None
) -> "Iterator[tuple[str, Column]]":
    """Each field that may not be null, and whether it is given, or what it is in is allowed to be absent."""
    from pyspark.sql.types import StructType

    for one in schema.fields:
        path, inner = f"{prefix}{one.name}", value[one.name]
        if not one.nullable:
            there = inner.isNotNull()
            yield path, there if given is None else given | there
        if isinstance(one.dataType, StructType):
            absent = inner.isNull() if given is None else given | inner.isNull()
            yield from _required(one.dataType, inner, f"{path}.", absent)


class Avro:
    """Avro's binary encoding, with a schema as JSON text or as the result of `json.loads`.

    With `registry`, a URL, values are in Confluent's wire format: each names the schema that it was written
    with by number. It is read with that schema and then fitted to `schema`; if none is given, to the newest
    one of `subject`. With `confluent` alone the number is skipped, and all values are read with `schema`.
    """

    def __init__(
        self,
        schema: "str | dict[str, Any] | None" = None,
        *,
        registry: str | None = None,
        subject: str | None = None,
        confluent: bool = False,
    ) -> None:
        if schema is None and not (registry and subject):
            raise PipelineError("Avro needs a schema, or a registry and a subject.")
        self._schema = schema
        self._registry = registry
        self._subject = subject
        self._confluent = confluent or registry is not None

    def decode(self, frame: "DataFrame", column: str, error: str) -> "DataFrame":
        from penstock.pipeline import avro
        from penstock.pipeline.registry import Registry

        schema = self._schema
        if schema is None:
            assert self._registry is not None and self._subject is not None
            schema = Registry(self._registry).latest(self._subject)
        settings = avro.Settings(avro.text(schema), self._registry, self._confluent)
        return _by_worker(frame, column, error, avro.spark_type(settings.schema), functools.partial(
            avro.decoder, settings
        ))  # fmt: skip


class Protobuf:
    """Protocol Buffers: a generated message class, or a descriptor set and the full name of a message.

    `protoc --descriptor_set_out --include_imports` writes the set; give its bytes or the path of the file.
    With `registry` and `subject` the newest schema of the subject is taken instead. `confluent`: values are
    in Confluent's wire format. A field's number gives its meaning; the schema's number is not used.
    """

    def __init__(
        self,
        message: Any,
        descriptors: "bytes | str | None" = None,
        *,
        registry: str | None = None,
        subject: str | None = None,
        confluent: bool = False,
    ) -> None:
        if isinstance(message, str) and descriptors is None and not (registry and subject):
            raise PipelineError(
                "Protobuf needs a message class, a descriptor set, or a registry and a subject."
            )
        self._message = message
        self._descriptors = descriptors
        self._registry = registry
        self._subject = subject
        self._confluent = confluent or registry is not None

    def decode(self, frame: "DataFrame", column: str, error: str) -> "DataFrame":
        from penstock.pipeline import protobuf
        from penstock.pipeline.registry import Registry

        name = self._message
        if not isinstance(name, str):
            name, files = name.DESCRIPTOR.full_name, protobuf.files_of(name.DESCRIPTOR)
        elif self._descriptors is not None:
            files = protobuf.files_in(self._descriptors)
        else:
            assert self._registry is not None and self._subject is not None
            files = Registry(self._registry).protobuf_files(self._subject)
        settings = protobuf.Settings(name, files, self._confluent)
        return _by_worker(frame, column, error, protobuf.spark_type(settings), functools.partial(
            protobuf.decoder, settings
        ))  # fmt: skip


Decoder = Callable[[bytes], Any]
"""One value; raises BadRecordError for one that is bad."""


class BadRecordError(Exception):
    """A record cannot be decoded. The message is the reason, for the dead letter."""


def _by_worker(
    frame: "DataFrame", column: str, error: str, kind: "DataType", make: Callable[[], Decoder]
) -> "DataFrame":
    """Decode in Python workers, by a decoder that each of them makes once."""
    import pyarrow as pa
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    decoded = StructType([StructField("value", kind), StructField("error", StringType())])
    target = to_arrow_type(kind, timezone="UTC")

    def work(values: pa.Array) -> pa.Array:
        from penstock.pipeline.columns import decode_column

        return decode_column(values, make, target, column)

    # Declared as not deterministic, so that it runs once for a record whatever is made of its result.
    arrow_udf: Any = f.arrow_udf  # type: ignore[attr-defined]
    udf = arrow_udf(work, returnType=decoded).asNondeterministic()
    frame = frame.withColumn(_PARSED, udf(f.col(column)))
    return frame.withColumns({column: f.col(f"{_PARSED}.value"), error: f.col(f"{_PARSED}.error")}).drop(
        _PARSED
    )
