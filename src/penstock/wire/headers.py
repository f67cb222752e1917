"""Request and response headers.

A request header has one of three forms. Version 1 is key, version, correlation id and client id. Version 2
adds tagged fields, and belongs to the flexible versions of an API. Version 0 lacks the client id: only
ControlledShutdown version 0 ever used it, and this module knows it so that such a frame is not malformed. The
client id is never a compact string, so the header can be read before the API is known.

A response header is the correlation id, followed by tagged fields for flexible versions. The header of
ApiVersions never has tagged fields: a client must be able to read that answer even if the broker did not
understand its request.
"""

from struct import Struct

import msgspec

from penstock.wire import varint
from penstock.wire.errors import WireError
from penstock.wire.schema import NEVER_FLEXIBLE

API_VERSIONS_KEY = 18
CONTROLLED_SHUTDOWN_KEY = 7

# fmt: off
FLEXIBLE_FROM = {
    0: 9, 1: 12, 2: 6, 3: 9, 7: 3, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3, 18: 3,
    19: 5, 20: 4, 21: 2, 22: 2, 23: 4, 24: 3, 25: 3, 26: 3, 27: 1, 28: 3, 29: 2, 30: 2, 31: 2, 32: 4,
    33: 2, 34: 2, 35: 2, 36: 2, 37: 2, 38: 2, 39: 2, 40: 2, 41: 2, 42: 2, 43: 2, 44: 1, 45: 0, 46: 0,
    48: 1, 49: 1, 50: 0, 51: 0, 55: 0, 57: 0, 60: 0, 61: 0, 64: 0, 65: 0, 66: 0, 68: 0, 69: 0, 71: 0,
    72: 0, 74: 0, 75: 0, 76: 0, 77: 0, 78: 0, 79: 0, 80: 0, 81: 0, 83: 0, 84: 0, 85: 0, 86: 0, 87: 0,
    88: 0, 89: 0, 90: 0, 91: 0, 92: 0,
}
# fmt: on
"""The first flexible version by API key, the same for request and response. A table, so that reading a header
does not import the message."""

_HEADER_0 = Struct(">hhi")
_HEADER = Struct(">hhih")
_CORRELATION = Struct(">i")
_CORRELATION_AND_TAGS = Struct(">ix")


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    """Where the message starts in the frame."""


def parse_request_header(frame: memoryview) -> RequestHeader:
    """The header of a frame, also of an unknown API or version, which the caller refuses."""
    end = len(frame)
    if end < 10:
        if end >= 8:
            api_key, api_version, correlation_id = _HEADER_0.unpack_from(frame)
            if api_key == CONTROLLED_SHUTDOWN_KEY and api_version == 0:
                return RequestHeader(api_key, api_version, correlation_id, None, 8)
        raise WireError("a request header needs at least ten bytes")
    api_key, api_version, correlation_id, length = _HEADER.unpack_from(frame)
    if api_key == CONTROLLED_SHUTDOWN_KEY and api_version == 0:
        return RequestHeader(api_key, api_version, correlation_id, None, 8)
    body_at = 10
    client_id = None
    if length >= 0:
        body_at += length
        if body_at > end:
            raise WireError("the client id is longer than the frame")
        # It only names the client in logs, so what is not UTF-8 does no harm; Kafka takes it likewise.
        client_id = str(frame[10:body_at], "utf-8", "replace")
    if api_version >= FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE):
        body_at = varint.skip_tags(frame, body_at)
    return RequestHeader(api_key, api_version, correlation_id, client_id, body_at)


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request that we send."""
    if api_key == CONTROLLED_SHUTDOWN_KEY and version == 0:
        return _HEADER_0.pack(api_key, version, correlation_id)
    encoded = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(encoded)
    tags = b"\0" if version >= FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE) else b""
    return _HEADER.pack(api_key, version, correlation_id, length) + encoded + tags


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    if version >= FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE) and api_key != API_VERSIONS_KEY:
        return _CORRELATION_AND_TAGS.pack(correlation_id)
    return _CORRELATION.pack(correlation_id)


def parse_response_header(api_key: int, version: int, frame: memoryview) -> tuple[int, int]:
    """Correlation id of an answer to us, and where its message starts."""
    if len(frame) < 4:
        raise WireError("a response header needs at least four bytes")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    if version >= FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE) and api_key != API_VERSIONS_KEY:
        return correlation_id, varint.skip_tags(frame, 4)
    return correlation_id, 4
