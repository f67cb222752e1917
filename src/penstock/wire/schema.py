"""The language that message classes are written in.

A message is a class whose annotations are its layout, fields in wire order, one class for all versions:

    class FetchPartition(Message):
        partition: Int32 = 0
        current_leader_epoch: Annotated[Int32, "9+", "ignorable"] = -1
        replica_directory_id: Annotated[Uuid, "17+", "tag 0"] = ZERO_UUID

After the wire type come, as strings and in any order:

- `"9+"`, `"0-12"`, `"4"`: the versions that have the field. Absent: all of them.
- `"nullable 2+"`: the versions in which null is allowed, for a type that is `| None`. Absent: all of them.
- `"tag 0"`: a tagged field with that number.
- `"ignorable"`: dropped in silence when a version that lacks the field is written. Without it, to write a
  value other than the default to such a version is an error: the reader would miss something that matters.

Strings cost nothing when a module is imported; `codec` reads them when a version is first used.
"""

from typing import Annotated, ClassVar

import msgspec

from penstock.wire.buffers import Buffer

Int8 = Annotated[int, "int8"]
Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
UInt16 = Annotated[int, "uint16"]
Float64 = Annotated[float, "float64"]
Bool = Annotated[bool, "bool"]
String = Annotated[str, "string"]
Bytes = Annotated[bytes, "bytes"]
Uuid = Annotated[bytes, "uuid"]
Records = Annotated[Buffer, "records"]

ZERO_UUID = bytes(16)
NEVER_FLEXIBLE = 0x7FFF


class Message(msgspec.Struct, gc=False, repr_omit_defaults=True):
    """A structure on the wire. No message refers to itself, so the cycle collector need not look at it."""


class TopMessage(Message):
    """A message that is encoded by itself and so has versions; the structures inside it share them."""

    min_version: ClassVar[int]
    max_version: ClassVar[int]
    flexible_from: ClassVar[int]
    """First version with compact types and tagged fields."""


class ApiMessage(TopMessage):
    """A request or a response."""

    api_key: ClassVar[int]
