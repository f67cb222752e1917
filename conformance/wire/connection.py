"""One plain connection to a broker: send a request, wait for its answer or for the broker to close."""

import socket
import struct
from types import TracebackType
from typing import Any, Self

from conformance.wire import codec, definitions
from conformance.wire.codec import Value, varint

ANSWER_TIMEOUT_S = 10.0
API_VERSIONS = 18
# An answer larger than this is a broken broker, not an answer.
FRAME_BYTES_MAX = 256 << 20


class Closed(Exception):
    """The broker closed the connection instead of answering."""


class Silent(Exception):
    """The broker neither answered nor closed in time."""


class Connection:
    def __init__(
        self, host: str, port: int, client_id: str | None = "conformance", timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self.client_id = client_id
        self.correlation = 0
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, api: str, version: int, body: Value | None = None) -> Value:
        """Send one request by name and give its decoded answer."""
        self.send(api, version, body)
        return self.receive(api, version)

    def send(self, api: str, version: int, body: Value | None = None) -> None:
        message = definitions.request(api, version)
        self.send_body(
            message.api_key, version, codec.encode(message, version, body or {}), message.is_flexible(version)
        )

    def send_body(self, api_key: int, version: int, body: bytes, flexible: bool) -> None:
        self.send_frame(self.header(api_key, version, flexible) + body)

    def header(self, api_key: int, version: int, flexible: bool) -> bytes:
        self.correlation += 1
        client = (
            b"\xff\xff"
            if self.client_id is None
            else struct.pack(">h", len(self.client_id)) + self.client_id.encode()
        )
        tags = varint(0) if flexible else b""
        return struct.pack(">hhi", api_key, version, self.correlation) + client + tags

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise Silent from None
        except OSError:
            raise Closed from None

    def receive(self, api: str, version: int) -> Value:
        message = definitions.response(api, version)
        correlation, frame = self.receive_frame()
        if correlation != self.correlation:
            raise codec.Malformed(f"correlation id {correlation}, asked with {self.correlation}")
        at = 4
        # ApiVersions answers always have the old header, so that clients can read them before they know the
        # broker.
        if message.is_flexible(version) and message.api_key != API_VERSIONS:
            if frame[at] != 0:
                raise codec.Malformed("the answer's header has tags")
            at += 1
        return codec.decode(message, version, frame[at:])

    def receive_frame(self) -> tuple[int, bytes]:
        """The next answer's correlation id and its frame, size left off."""
        (size,) = struct.unpack(">i", self._exactly(4))
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise codec.Malformed(f"a frame of {size} bytes")
        frame = self._exactly(size)
        return struct.unpack_from(">i", frame)[0], frame

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(min(size - len(data), 1 << 20))
            except TimeoutError:
                raise Silent from None
            except OSError:
                raise Closed from None
            if not part:
                raise Closed
            data += part
        return bytes(data)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def advertised(host: str, port: int) -> dict[int, tuple[int, int]]:
    """The versions that a broker says it serves, by API key."""
    with Connection(host, port) as connection:
        answer: dict[str, Any] = connection.call("ApiVersions", 0)
    return {each["ApiKey"]: (each["MinVersion"], each["MaxVersion"]) for each in answer["ApiKeys"]}
