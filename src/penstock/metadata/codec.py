"""How entries, snapshots and the cluster's identity are stored.

    entry, snapshot:  magic (4)  format version (u16)  crc32c of the body (u32)  body (msgpack)
    identity:         JSON, so that a person who finds the store can read what it is

A reader refuses what a newer Penstock wrote with one sentence (`FormatError`) and never guesses: an entry
that is not understood cannot be skipped, or images would differ.
"""

import struct

import msgspec

from penstock.metadata.commands import AnyCommand
from penstock.metadata.image import BrokerInfo, ClusterImage, PendingMove, TopicInfo, WalRef, derive
from penstock.wire.checksum import crc32c

FORMAT_VERSION = 1

_HEADER = struct.Struct(">4sHI")
_ENTRY_MAGIC = b"PSme"
_SNAPSHOT_MAGIC = b"PSms"


class FormatError(Exception):
    """Stored bytes cannot be read: damaged, or written by a newer version. One sentence for a person."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of the metadata log.

    `author` is unique to the proposal, so a writer whose answer was lost recognises its own entry, and
    never mistakes another broker's equal wish for it. `time_ms` is for people.
    """

    number: int
    author: str
    time_ms: int
    commands: list[AnyCommand]


class Identity(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="penstock-cluster"):
    """What lives in a store."""

    format: int
    cluster_id: str
    metadata: str = ""
    """Where the metadata log is; "": in the store."""

    @classmethod
    def new(cls, cluster_id: str, metadata: str = "") -> "Identity":
        return cls(FORMAT_VERSION, cluster_id, metadata)


class _Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A full image, or, once a later snapshot replaced it, a stub that keeps version and floor only."""

    version: int
    floor: int
    stub: bool = False
    cluster_id: str = ""
    next_producer_id: int = 0
    brokers: list[BrokerInfo] = []
    topics: list[TopicInfo] = []
    configs: list[tuple[int, str, dict[str, str]]] = []
    sealed: list[tuple[WalRef, int]] = []
    wal_starts: list[tuple[WalRef, int]] = []
    moves: list[tuple[bytes, int, PendingMove]] = []


class Stub(msgspec.Struct, frozen=True):
    """A replaced snapshot: the log's entries up to `version` may be gone, and its image is."""

    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(Entry).decode
_decode_snapshot = msgspec.msgpack.Decoder(_Snapshot).decode


def encode_entry(entry: Entry) -> bytes:
    return _frame(_ENTRY_MAGIC, _encode(entry))


def decode_entry(data: bytes, number: int) -> Entry:
    """The entry stored under `number`."""
    what = f"metadata entry {number}"
    body = _unframe(_ENTRY_MAGIC, data, what)
    try:
        entry = _decode_entry(body)
    except msgspec.DecodeError as error:
        raise FormatError(f"{what} holds something that this version does not know: {error}") from error
    if entry.number != number:
        raise FormatError(f"{what} says that it is entry {entry.number}")
    return entry


def encode_snapshot(image: ClusterImage, floor: int) -> bytes:
    """`floor`: the version of the snapshot before; entries up to it may be deleted once this one exists."""
    snapshot = _Snapshot(
        version=image.version,
        floor=floor,
        cluster_id=image.cluster_id,
        next_producer_id=image.next_producer_id,
        brokers=list(image.brokers.values()),
        topics=list(image.topics.values()),
        configs=[(kind, name, dict(values)) for (kind, name), values in image.configs.items()],
        sealed=list(image.sealed.items()),
        wal_starts=list(image.wal_starts.items()),
        moves=[(topic_id, index, move) for (topic_id, index), move in image.moves.items()],
    )
    return _frame(_SNAPSHOT_MAGIC, _encode(snapshot))


def encode_stub(version: int, floor: int) -> bytes:
    return _frame(_SNAPSHOT_MAGIC, _encode(_Snapshot(version=version, floor=floor, stub=True)))


def decode_snapshot(data: bytes, ordinal: int) -> tuple[int, ClusterImage | Stub]:
    """The floor, and the image or what is left of it."""
    what = f"metadata snapshot {ordinal}"
    body = _unframe(_SNAPSHOT_MAGIC, data, what)
    try:
        snapshot = _decode_snapshot(body)
    except msgspec.DecodeError as error:
        raise FormatError(f"{what} holds something that this version does not know: {error}") from error
    if snapshot.stub:
        return snapshot.floor, Stub(snapshot.version)
    image = ClusterImage(
        version=snapshot.version,
        cluster_id=snapshot.cluster_id,
        next_producer_id=snapshot.next_producer_id,
        brokers={info.id: info for info in snapshot.brokers},
        topics={topic.name: topic for topic in snapshot.topics},
        configs={(kind, name): values for kind, name, values in snapshot.configs},
        sealed=dict(snapshot.sealed),
        wal_starts=dict(snapshot.wal_starts),
        moves={(topic_id, index): move for topic_id, index, move in snapshot.moves},
    )
    return snapshot.floor, derive(image)


def encode_identity(identity: Identity) -> bytes:
    return msgspec.json.encode(identity)


def decode_identity(data: bytes) -> Identity:
    """FormatError if this version cannot serve what lives in the store."""
    try:
        identity = msgspec.json.decode(data, type=Identity)
    except msgspec.DecodeError as error:
        raise FormatError(
            "the store holds something at meta/cluster that is not a Penstock cluster"
        ) from error
    if identity.format != FORMAT_VERSION:
        raise FormatError(
            f"the store holds a cluster in format {identity.format}; this version of Penstock reads and "
            f"writes format {FORMAT_VERSION}"
        )
    return identity


def _frame(magic: bytes, body: bytes) -> bytes:
    return _HEADER.pack(magic, FORMAT_VERSION, crc32c(body)) + body


def _unframe(magic: bytes, data: bytes, what: str) -> memoryview:
    if len(data) < _HEADER.size:
        raise FormatError(f"{what} is cut short")
    found, version, checksum = _HEADER.unpack_from(data)
    if found != magic:
        raise FormatError(f"{what} does not look like one")
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{what} is in format {version}; this version of Penstock reads format {FORMAT_VERSION}"
        )
    body = memoryview(data)[_HEADER.size :]
    if crc32c(body) != checksum:
        raise FormatError(f"{what} is damaged: its checksum does not match")
    return body
