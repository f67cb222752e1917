"""A partition's manifest: everything about its settled records, in one range of one object.

It lists the partition's segments and carries the state at `end_offset` (leader epochs, producers, open
and aborted transactions), so that opening a partition reads one range, whatever its history, and then
only the write-ahead log from there on.

Stored form: four bytes CRC32C (big-endian) of the rest, then MessagePack. The manifests of all partitions
that one settling touched lie one after the other in one object; the cluster image says where each is.
A field may be added at the end with a default, and with a new format; a field is never removed. An element
that a reader does not know is refused, never dropped.
"""

import msgspec

from penstock.log.epochs import EpochStart
from penstock.log.markers import AbortedTransaction
from penstock.log.producers import ProducerEntry
from penstock.wire.buffers import Buffer
from penstock.wire.checksum import crc32c

FORMAT = 2
"""1: without `SegmentRef.object_bytes` and `Manifest.hurt`. 2: with them."""


class ManifestError(Exception):
    """The stored manifest is damaged, or of a format that this version does not know."""


class SegmentRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The records of one partition in one object, from `base_offset` up to, not including, `end_offset`.

    Other partitions may lie in the same object. `index_key` holds the extents, `index_length` bytes from
    `index_start`; it is the object itself, or, for a write-ahead file that became a segment without being
    copied, another one. After compaction, offsets in the range may be missing.
    """

    key: str
    base_offset: int
    end_offset: int
    size_bytes: int
    """Bytes of this partition's batches in the object."""
    max_timestamp: int
    index_key: str
    index_start: int
    index_length: int
    min_timestamp: int = -1
    """The least of its extents' greatest timestamps: a bound for segment.ms, not for searching."""
    settled_ms: int = -1
    """When it was written: the age of records that carry no time."""
    object_bytes: int = -1
    """The size of the whole object `key`; -1: not known."""


class HurtRange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Records from `start` up to, not including, `end` that were acknowledged and that the store lost or
    damaged. A reader that asks for one of them gets an error. Offsets around them stay as they are."""

    start: int
    end: int
    reason: str = ""


def without_hurt_below(hurt: tuple[HurtRange, ...], log_start: int) -> tuple[HurtRange, ...]:
    """What is left to tell after records below `log_start` are gone."""
    if not hurt or hurt[0].start >= log_start:
        return hurt
    return tuple(
        HurtRange(max(one.start, log_start), one.end, one.reason) for one in hurt if one.end > log_start
    )


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic_id: bytes
    partition: int
    end_offset: int
    segments: tuple[SegmentRef, ...] = ()
    epochs: tuple[EpochStart, ...] = ()
    producers: dict[int, ProducerEntry] = {}
    ongoing: dict[int, int] = {}
    aborted: tuple[AbortedTransaction, ...] = ()
    compacted_end: int = 0
    """Below this, key compaction has been here."""
    format: int = FORMAT
    hurt: tuple[HurtRange, ...] = ()
    """In the order of offsets, without overlap."""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Manifest] | None = None


def encode_manifest(manifest: Manifest, level: int = FORMAT) -> bytes:
    """`level`: the cluster's feature level. At 1 there may be brokers that know format 1 only; they ignore
    the size of an object, but must not open a partition whose hurt ranges they would drop."""
    number = FORMAT if level >= FORMAT or manifest.hurt else 1
    if manifest.format != number:
        manifest = msgspec.structs.replace(manifest, format=number)
    body = _encoder.encode(manifest)
    return crc32c(body).to_bytes(4, "big") + body


def decode_manifest(stored: Buffer) -> Manifest:
    global _decoder  # noqa: PLW0603  Built on first use: a broker without settled records needs none.
    if _decoder is None:
        _decoder = msgspec.msgpack.Decoder(Manifest)
    body = memoryview(stored)[4:]
    if len(stored) < 4 or crc32c(body) != int.from_bytes(stored[:4], "big"):
        raise ManifestError("the manifest has a wrong checksum")
    try:
        manifest = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"the manifest cannot be read: {error}") from error
    if not 1 <= manifest.format <= FORMAT:
        raise ManifestError(f"the manifest has format {manifest.format}; this version knows 1 to {FORMAT}")
    return manifest
