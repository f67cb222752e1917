"""Protobuf in Python workers: the types of a message, and a decoder by the protobuf library.

If a field is not in the bytes and has no presence, it has its default, as the language defines. If it has
presence (messages, `optional`, members of a oneof), it is null.
"""

import datetime
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.pipeline.avro import schema_number
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats import FRAME_BYTES, BadRecordError, Decoder

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

Descriptor = Any
"""Descriptors of the library, whose types depend on how it was built."""
Convert = Callable[[Any], Any]
TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Settings(NamedTuple):
    message: str
    files: tuple[bytes, ...]
    """Serialized file descriptors, each after those that it imports."""
    confluent: bool


def files_of(descriptor: Descriptor) -> tuple[bytes, ...]:
    """The files that a message needs."""
    found: dict[str, bytes] = {}

    def visit(file: Any) -> None:
        if file.name not in found:
            for one in file.dependencies:
                visit(one)
            found[file.name] = file.serialized_pb

    visit(descriptor.file)
    return tuple(found.values())


def files_in(descriptors: bytes | str) -> tuple[bytes, ...]:
    """The files of a descriptor set."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    try:
        data = Path(descriptors).read_bytes() if isinstance(descriptors, str) else descriptors
        found = {one.name: one for one in FileDescriptorSet.FromString(data).file}
    except OSError as error:
        raise PipelineError(f"The descriptor set {descriptors!r} cannot be read: {error.strerror}.") from None
    except Exception as error:
        raise PipelineError(f"That is not a Protobuf descriptor set: {error}.") from None
    ordered: dict[str, bytes] = {}

    def visit(name: str) -> None:
        if name in found and name not in ordered:
            for one in found[name].dependency:
                visit(one)
            ordered[name] = found[name].SerializeToString()

    for name in found:
        visit(name)
    return tuple(ordered.values())


def _descriptor(settings: Settings) -> Descriptor:
    try:
        return _pool(settings.files).FindMessageTypeByName(settings.message)
    except KeyError:
        raise PipelineError(f"The Protobuf descriptors have no message {settings.message!r}.") from None


def last_file(files: tuple[bytes, ...]) -> Descriptor:
    """The descriptor of the last file, which may import the others."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    return _pool(files).FindFileByName(FileDescriptorProto.FromString(files[-1]).name)


def _pool(files: tuple[bytes, ...]) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, timestamp_pb2, wrappers_pb2

    pool = descriptor_pool.DescriptorPool()
    well_known = (timestamp_pb2, duration_pb2, wrappers_pb2)
    given = {descriptor_pb2.FileDescriptorProto.FromString(one).name for one in files}
    # Registries leave out what comes with the language.
    supplied = [one.DESCRIPTOR.serialized_pb for one in well_known if one.DESCRIPTOR.name not in given]
    try:
        for file in (*supplied, *files):
            pool.AddSerializedFile(file)
    except TypeError as error:
        raise PipelineError(f"The Protobuf descriptors do not fit together: {error}.") from None
    return pool


# Types.


def spark_type(settings: Settings) -> "DataType":
    return _message_type(_descriptor(settings), ())


def _message_type(message: Descriptor, within: tuple[str, ...]) -> "DataType":
    from pyspark.sql import types as t

    if message.full_name == TIMESTAMP:
        return t.TimestampType()
    if message.full_name == DURATION:
        return t.DayTimeIntervalType()
    if message.full_name in within:
        raise PipelineError(
            f"The Protobuf message {message.full_name!r} contains itself, which no Spark column can."
        )
    inside = (*within, message.full_name)
    return t.StructType([t.StructField(one.name, _field_type(one, inside)) for one in message.fields])


def _field_type(field: Descriptor, within: tuple[str, ...]) -> "DataType":
    from pyspark.sql import types as t

    if _is_map(field):
        entry = field.message_type.fields_by_name
        return t.MapType(_single_type(entry["key"], within), _single_type(entry["value"], within))
    single = _single_type(field, within)
    return t.ArrayType(single) if field.is_repeated else single


def _single_type(field: Descriptor, within: tuple[str, ...]) -> "DataType":
    from pyspark.sql import types as t

    kinds: dict[int, DataType] = {
        field.CPPTYPE_INT32: t.IntegerType(), field.CPPTYPE_INT64: t.LongType(),
        field.CPPTYPE_UINT32: t.LongType(), field.CPPTYPE_UINT64: t.DecimalType(20, 0),
        field.CPPTYPE_DOUBLE: t.DoubleType(), field.CPPTYPE_FLOAT: t.FloatType(),
        field.CPPTYPE_BOOL: t.BooleanType(), field.CPPTYPE_ENUM: t.StringType(),
    }  # fmt: skip
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        return _message_type(field.message_type, within)
    if field.cpp_type == field.CPPTYPE_STRING:
        return t.BinaryType() if field.type == field.TYPE_BYTES else t.StringType()
    return kinds[field.cpp_type]


def _is_map(field: Descriptor) -> bool:
    kind = field.message_type
    return bool(field.is_repeated and kind is not None and kind.GetOptions().map_entry)


# Values.


def decoder(settings: Settings) -> Decoder:
    """Decodes one value. Made once in each worker."""
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    descriptor = _descriptor(settings)
    kind = GetMessageClass(descriptor)
    convert = _message(descriptor)
    place = _place(descriptor)

    def decode(data: bytes) -> Any:
        if settings.confluent:
            schema_number(data)
            named, at = message_indexes(data, FRAME_BYTES)
            if named != place:
                raise BadRecordError(f"is message {named} of its schema, and {settings.message} is {place}.")
            data = data[at:]
        try:
            message = kind.FromString(data)
        except (DecodeError, UnicodeDecodeError) as error:
            raise BadRecordError(f"is not a {settings.message}: {error}.") from None
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise BadRecordError(f"lacks what {settings.message} requires: {missing}.")
        try:
            return convert(message)
        except (ValueError, OverflowError) as error:
            raise BadRecordError(f"holds what has no place in a column: {error}.") from None

    return decode


def _place(message: Descriptor) -> list[int]:
    """Where a message stands in its file: its number, after those of the messages around it."""
    path: list[int] = []
    while message is not None:
        around = message.containing_type
        beside = around.nested_types if around is not None else message.file.message_types_by_name.values()
        path.insert(0, [one.full_name for one in beside].index(message.full_name))
        message = around
    return path


def message_indexes(data: bytes, at: int) -> tuple[list[int], int]:
    """The message indexes behind the number of the schema, and their end. A lone zero is short for [0]."""
    count, at = _zigzag(data, at)
    if not 0 <= count <= 100:
        raise BadRecordError("has no list of message indexes, as Confluent's wire format asks for.")
    found = []
    for _ in range(count):
        number, at = _zigzag(data, at)
        found.append(number)
    return found or [0], at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise BadRecordError("has no list of message indexes, as Confluent's wire format asks for.")


def _message(message: Descriptor) -> Convert:
    if message.full_name == TIMESTAMP:
        return lambda one: _EPOCH + datetime.timedelta(seconds=one.seconds, microseconds=one.nanos // 1000)
    if message.full_name == DURATION:
        return lambda one: datetime.timedelta(seconds=one.seconds, microseconds=one.nanos // 1000)
    fields = [(one.name, one.has_presence, _field(one)) for one in message.fields]

    def convert(value: Any) -> dict[str, Any]:
        return {
            name: None if presence and not value.HasField(name) else one(getattr(value, name))
            for name, presence, one in fields
        }

    return convert


def _field(field: Descriptor) -> Convert:
    if _is_map(field):
        inner = _single(field.message_type.fields_by_name["value"])
        return lambda entries: [(key, inner(entries[key])) for key in entries]
    single = _single(field)
    return (lambda values: _list(values, single)) if field.is_repeated else single


def _list(values: Iterable[Any], convert: Convert) -> list[Any]:
    return [convert(one) for one in values]


def _single(field: Descriptor) -> Convert:
    if field.cpp_type == field.CPPTYPE_MESSAGE:
        return _message(field.message_type)
    if field.cpp_type == field.CPPTYPE_ENUM:
        names = {one.number: one.name for one in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    if field.cpp_type == field.CPPTYPE_UINT64:
        from decimal import Decimal

        return Decimal
    return lambda value: value
