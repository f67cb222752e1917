"""Messages to bytes and back, at any version that the message has.

The code for a pair of message class and version is written and compiled when that pair is first used
(`decoding`, `encoding`). Bytes that remain after a message are the caller's business; like Kafka, a broker
ignores them after a request.
"""

from struct import Struct
from typing import TypeVar

from penstock.wire.buffers import Buffer
from penstock.wire.decoding import Decoder, make_decoder
from penstock.wire.encoding import Encoder, make_encoder
from penstock.wire.errors import WireError
from penstock.wire.layout import layout_of
from penstock.wire.schema import TopMessage

M = TypeVar("M", bound=TopMessage)

ITEMS_MAX = 250_000
"""So many items may all arrays of a request hold together. A client that asks for 100,000 partitions at once
has room. A frame of 100 MB has room for 30 million: they would take gigabytes, and minutes in which nobody
else is answered."""
_OF_CLIENTS = ("Request", "Subscription")
"""How the names of messages end that anybody may send. Answers and stored records are as long as they are."""

_decoders: dict[tuple[type[TopMessage], int], Decoder] = {}
_encoders: dict[tuple[type[TopMessage], int], Encoder] = {}
_VERSION = Struct(">h")


def decode(cls: type[M], version: int, buf: Buffer, pos: int = 0) -> tuple[M, int]:
    """The message that starts at `pos`, and where it ends.

    Records are slices of `buf`, everything else is copied. Raises WireError for malformed bytes, and
    ValueError if the message has no such version.
    """
    decoder = _decoders.get((cls, version))
    if decoder is None:
        decoder = _decoders[cls, version] = make_decoder(
            layout_of(cls, version), ITEMS_MAX if cls.__name__.endswith(_OF_CLIENTS) else None
        )
    message: tuple[M, int] = decoder(buf if type(buf) is memoryview else memoryview(buf), pos)
    return message


def encode(message: TopMessage, version: int) -> bytes:
    """Raises ValueError for what the version cannot carry: a field that it lacks and that is not ignorable,
    null where it is not allowed, a number out of range."""
    return b"".join(encode_pieces(message, version))


def encode_pieces(message: TopMessage, version: int) -> list[Buffer]:
    """Like `encode`, as the pieces that make it up: records are not copied."""
    cls = type(message)
    encoder = _encoders.get((cls, version))
    if encoder is None:
        encoder = _encoders[cls, version] = make_encoder(layout_of(cls, version), version)
    return encoder(message)


def decode_versioned(cls: type[M], buf: Buffer, *, newer_ok: bool = False) -> M:
    """A message behind its own two-byte version, as in control records, internal topics and the consumer
    protocol. With `newer_ok` a newer version is read as our newest, as consumers do among themselves: there a
    version only ever adds to the end."""
    if len(buf) < 2:
        raise WireError(f"{cls.__name__}: no version")
    (version,) = _VERSION.unpack_from(buf)
    if version < cls.min_version or (version > cls.max_version and not newer_ok):
        raise WireError(f"{cls.__name__} has no version {version}")
    message, _ = decode(cls, min(version, cls.max_version), buf, 2)
    return message


def encode_versioned(message: TopMessage, version: int | None = None) -> bytes:
    """The inverse of `decode_versioned`; the newest version if none is given."""
    if version is None:
        version = message.max_version
    return _VERSION.pack(version) + encode(message, version)
