"""The stored forms of entries, snapshots and the cluster's identity.

    entry, snapshot:  a frame around a body in msgpack
    identity:         JSON, so that a person who finds the store can read what it is

    frame 1:  magic (4)  version (u16)  crc32c of the body (u32)  body
    frame 2:  magic (4)  version (u16)  length of the body (u32)  crc32c of the body (u32)
              crc32c of the 14 bytes before (u32)  body

Frame 2 is written from feature level 2 on. A reader trusts its length before the body is there. So bytes that
end too soon are known to be torn, as a power cut leaves them, and not rotten. For a frame 1 this is a guess:
it is torn if its body ends within a value.

A reader refuses the form of a newer Penstock with one sentence (`FormatError`) and never guesses. It cannot
skip an entry that it does not understand, nor drop a field that it does not know, or images would differ.
"""

import re
import struct

import msgspec

from penstock.metadata.commands import AnyCommand, SetLevel
from penstock.metadata.image import ClusterImage, derive
from penstock.metadata.levels import LEVEL_MAX, LEVEL_MIN
from penstock.wire.checksum import crc32c

FORMAT_VERSION = 1
"""Of the identity."""

_HEADER = struct.Struct(">4sHI")
_HEADER_2 = struct.Struct(">4sHII")
_CHECK = struct.Struct(">I")
_TORN_ZEROS = bytes(8)
"""So many zeros at the end of a frame that does not match its checksum were never written: a bit that flips
does not make them."""
_IDENTITY_BEGINS = b'{"kind":"penstock-cluster",'
_ENDS_IN_DAMAGE = re.compile(rb'"checksum":"[0-9a-f]{8}".\Z', re.DOTALL)
"""An identity that is whole but for its last byte: a bit flipped there, and nothing was cut off."""
_ENTRY_MAGIC = b"PSme"
_SNAPSHOT_MAGIC = b"PSms"


class FormatError(Exception):
    """Stored bytes cannot be read: damaged, or written by a newer version. One sentence for a person."""


class DamagedError(FormatError):
    """The bytes that were read are not those that were written. `torn`: they end too soon, as bytes that were
    not synced when the power went; they may never have been acknowledged."""

    def __init__(self, message: str, *, torn: bool = False) -> None:
        super().__init__(message)
        self.torn = torn


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the metadata log.

    `author` is unique to the proposal, so a writer whose answer was lost recognises its own entry, and
    never mistakes another broker's equal wish for it. `time_ms` is for people.
    """

    number: int
    author: str
    time_ms: int
    commands: list[AnyCommand]


class Identity(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="kind",
    tag="penstock-cluster",
    forbid_unknown_fields=True,
):
    """The cluster that lives in a store."""

    format: int
    cluster_id: str
    metadata: str = ""
    """Where the metadata log is; "": in the store."""
    checksum: str = ""
    """CRC32C of the same without it, in hexadecimal digits; "": written by the first version, which has
    none."""

    @classmethod
    def new(cls, cluster_id: str, metadata: str = "") -> "Identity":
        bare = cls(FORMAT_VERSION, cluster_id, metadata)
        return msgspec.structs.replace(bare, checksum=_identity_checksum(bare))


class Stub(msgspec.Struct, frozen=True):
    """A replaced snapshot: the log's entries up to `version` may be gone, and its image is."""

    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(Entry).decode


def encode_entry(entry: Entry, level: int) -> bytes:
    """`level`: the feature level that holds after the entry."""
    return _frame(_ENTRY_MAGIC, _encode(entry), level)


def decode_entry(data: bytes, number: int) -> Entry:
    """The entry stored under `number`. DamagedError, or FormatError if this version does not know it."""
    what = f"metadata entry {number}"
    body = _unframe(_ENTRY_MAGIC, data, what)
    try:
        entry = _decode_entry(body)
    except msgspec.DecodeError as error:
        raise FormatError(f"{what} holds something that this version does not know: {error}") from error
    for command in entry.commands:
        if isinstance(command, SetLevel):
            _require_level(command.level)
    if entry.number != number:
        raise DamagedError(f"{what} says that it is entry {entry.number}")
    return entry


def encode_snapshot(image: ClusterImage, floor: int) -> bytes:
    """`floor`: the version of the snapshot before; entries up to it may be deleted once this one exists."""
    from penstock.metadata.snapshot import snapshot_of

    return _frame(_SNAPSHOT_MAGIC, _encode(snapshot_of(image, floor)), image.level)


def encode_stub(version: int, floor: int, level: int) -> bytes:
    from penstock.metadata.snapshot import SnapshotBody

    return _frame(_SNAPSHOT_MAGIC, _encode(SnapshotBody(version=version, floor=floor, stub=True)), level)


def decode_snapshot(data: bytes, ordinal: int) -> tuple[int, ClusterImage | Stub]:
    """The floor, and the image or what is left of it. DamagedError, or FormatError if this version does not
    know it."""
    from penstock.metadata.snapshot import decode_body, image_in

    what = f"metadata snapshot {ordinal}"
    body = _unframe(_SNAPSHOT_MAGIC, data, what)
    try:
        snapshot = decode_body(body)
    except msgspec.DecodeError as error:
        raise FormatError(f"{what} holds something that this version does not know: {error}") from error
    if snapshot.stub:
        return snapshot.floor, Stub(snapshot.version)
    image = image_in(snapshot)
    _require_level(image.level)
    return snapshot.floor, derive(image)


def _require_level(level: int) -> None:
    if level > LEVEL_MAX:
        raise FormatError(
            f"the cluster is at feature level {level}; this version of Penstock knows levels {LEVEL_MIN} to "
            f"{LEVEL_MAX}"
        )


def _identity_checksum(identity: Identity) -> str:
    bare = msgspec.structs.replace(identity, checksum="")
    return f"{crc32c(msgspec.json.encode(bare)):08x}"


def encode_identity(identity: Identity) -> bytes:
    return msgspec.json.encode(identity)


def decode_identity(data: bytes) -> Identity:
    """FormatError if this version cannot serve what lives in the store."""
    left = data.rstrip(b"\0")
    begins_well = _IDENTITY_BEGINS.startswith(left[: len(_IDENTITY_BEGINS)])
    if begins_well and not left.endswith(b"}") and not _ENDS_IN_DAMAGE.search(left):
        raise DamagedError(
            f"meta/cluster is {'cut short' if left else 'empty'}, as a loss of power leaves it; a broker "
            "that starts heals it, unless there are records and nothing says whose; then `penstock store "
            "repair` says what can be saved",
            torn=True,
        )
    try:
        identity = msgspec.json.decode(data, type=Identity)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if b"penstock-cluster" in data or b'"checksum"' in data:
            raise _hurt_identity("it cannot be read") from error
        raise FormatError(
            "the store holds something at meta/cluster that is not a Penstock cluster"
        ) from error
    in_this_format = msgspec.structs.replace(identity, format=FORMAT_VERSION)
    right = identity.checksum == _identity_checksum(in_this_format)
    if identity.format != FORMAT_VERSION and right:
        raise _hurt_identity("its format is not the one that its checksum covers")
    if identity.format != FORMAT_VERSION:
        raise FormatError(
            f"the store holds a cluster in format {identity.format}; this version of Penstock reads and "
            f"writes format {FORMAT_VERSION}"
        )
    if identity.checksum and not right:
        raise _hurt_identity("its checksum does not match")
    return identity


def _hurt_identity(reason: str) -> DamagedError:
    return DamagedError(f"meta/cluster is damaged: {reason}; `penstock store repair` says what can be saved")


def _frame(magic: bytes, body: bytes, level: int) -> bytes:
    if level < 2:
        return _HEADER.pack(magic, 1, crc32c(body)) + body
    header = _HEADER_2.pack(magic, 2, len(body), crc32c(body))
    return header + _CHECK.pack(crc32c(header)) + body


def _unframe(magic: bytes, data: bytes, what: str) -> memoryview:
    if len(data) < _HEADER.size or not any(data[: _HEADER.size]):
        raise _cut_short(what)
    found, version, checksum = _HEADER.unpack_from(data)
    if found != magic:
        raise DamagedError(f"{what} does not look like one")
    if version == 2:
        return _unframe_2(data, what)
    if version != 1:
        raise FormatError(f"{what} is in format {version}; this version of Penstock reads formats 1 and 2")
    body = memoryview(data)[_HEADER.size :]
    if crc32c(body) != checksum:
        raise _cut_short(what) if _ends_within(body) else _rotten(what)
    return body


def _unframe_2(data: bytes, what: str) -> memoryview:
    start = _HEADER_2.size + _CHECK.size
    if len(data) < start:
        raise _cut_short(what)
    _magic, _version, length, checksum = _HEADER_2.unpack_from(data)
    if _CHECK.unpack_from(data, _HEADER_2.size)[0] != crc32c(memoryview(data)[: _HEADER_2.size]):
        raise _cut_short(what) if data.endswith(_TORN_ZEROS) else _rotten(what)
    body = memoryview(data)[start:]
    if len(body) < length:
        raise _cut_short(what)
    if len(body) > length or crc32c(body) != checksum:
        raise _cut_short(what) if data.endswith(_TORN_ZEROS) else _rotten(what)
    return body


def _ends_within(body: memoryview) -> bool:
    """Whether a body that does not match its checksum ends too soon, as far as that can be told."""
    if bytes(body[-len(_TORN_ZEROS) :]) == _TORN_ZEROS:
        return True
    try:
        msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return "truncated" in str(error)
    return False


def _cut_short(what: str) -> DamagedError:
    return DamagedError(f"{what} is cut short", torn=True)


def _rotten(what: str) -> DamagedError:
    return DamagedError(f"{what} is damaged: its checksum does not match")
