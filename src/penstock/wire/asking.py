"""How to ask a broker: a request becomes the bytes to send, and the bytes that come back become the answer.

The client that waits in a thread (`client.py`) and the client on an event loop (`broker/peers`) both use this
module. Each speaks the newest version that both sides know. The broker's answer to a greeting tells it.
"""

from struct import Struct
from typing import Generic, TypeVar

from penstock.wire.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.headers import parse_response_header, request_header
from penstock.wire.schema import ApiMessage

R = TypeVar("R", bound=ApiMessage)

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Larger answers are not believed."""
SIZE_BYTES = 4
"""Each frame follows its size."""
_SIZE = Struct(">i")
_CORRELATION = Struct(">i")
_CORRELATION_AT = 4
_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")

GREETINGS = (
    (
        ApiVersionsRequest(client_software_name="penstock", client_software_version="1"),
        ApiVersionsRequest.max_version,
    ),
    (ApiVersionsRequest(), 0),
)
"""The first question of a connection, and in which version. The next one follows only if the answer is
UNSUPPORTED_VERSION."""


class Question(Generic[R]):
    """One request on its way, and how its answer is to be read."""

    __slots__ = ("_api_key", "_correlation_id", "_response", "_version", "frame")

    def __init__(
        self, request: ApiMessage, response: type[R], version: int, correlation_id: int, client_id: str
    ) -> None:
        self._api_key = request.api_key
        self._response = response
        self._version = version
        self._correlation_id = correlation_id
        self.frame = request_header(request.api_key, version, correlation_id, client_id) + encode(
            request, version
        )

    def read(self, frame: memoryview) -> R:
        """The answer in a frame. WireError if it is none, or that of another request."""
        version = self._version
        if self._api_key == ApiVersionsRequest.api_key and frame[4:6] == _UNSUPPORTED:
            version = 0  # a refusal always has the form of version 0
        correlation_id, at = parse_response_header(self._api_key, version, frame)
        if correlation_id != self._correlation_id:
            raise WireError("it belongs to another request")
        answer, _end = decode(self._response, version, frame, at)
        return answer


class Versions:
    """The versions of each API that one broker serves."""

    __slots__ = ("_ranges",)

    def __init__(self, answer: ApiVersionsResponse) -> None:
        self._ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}

    def __contains__(self, api_key: int) -> bool:
        return api_key in self._ranges

    def newest(self, request: ApiMessage, limit: int | None = None) -> int | None:
        """The newest version of a request that both sides know; `limit`: and that is not newer than this."""
        low, high = self._ranges.get(request.api_key, (0, -1))
        version = min(high, request.max_version if limit is None else limit)
        return version if version >= max(low, request.min_version) else None


def sized(frame: bytes) -> bytes:
    """A frame behind its size, as it is sent."""
    return _SIZE.pack(len(frame)) + frame


def size_of_answer(head: bytes | bytearray) -> int:
    """The size in front of an answer. WireError if what answers does not speak the protocol."""
    size: int = _SIZE.unpack_from(head)[0]
    if not _CORRELATION.size <= size <= ANSWER_BYTES_MAX:
        raise WireError(f"an answer cannot have {size} bytes")
    return size


def correlation_of_request(frame: bytes) -> int:
    number: int = _CORRELATION.unpack_from(frame, _CORRELATION_AT)[0]
    return number


def correlation_of_answer(frame: bytes) -> int:
    number: int = _CORRELATION.unpack_from(frame)[0]
    return number
