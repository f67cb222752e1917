"""The columns of `format("penstock")`: those of Spark's Kafka source, by the same names and types."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.arrow.errors import OptionError

HEADERS = "headers"
TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def full_schema(*, headers: bool) -> StructType:
    return StructType([StructField(name, kind) for name, kind in TYPES.items() if headers or name != HEADERS])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema asks for: all, or those that a user chose, so that others are not decoded."""
    for field in schema.fields:
        kind = TYPES.get(field.name)
        if kind is None:
            raise OptionError(
                f"The schema names the column {field.name!r}; format('penstock') has {', '.join(TYPES)}."
            )
        if field.dataType != kind:
            raise OptionError(
                f"The column {field.name!r} is {kind.simpleString()}, not {field.dataType.simpleString()}."
            )
    if not schema.fields:
        raise OptionError("The schema names no column.")
    return tuple(schema.fieldNames())
