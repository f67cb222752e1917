"""The few requests that the harness sends itself: create and delete a topic, and the first record of a start.

They are written out by hand, in versions that every broker here speaks. So no client library's own start-up
time or retries get into a measurement.
"""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator

import crc32c

CLIENT = b"penstock-bench"
PRODUCE, LIST_OFFSETS, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 0, 2, 18, 19, 20
# Between two attempts; small, because the time to the first success is itself a measurement.
PAUSE_S = 0.001


class Refused(Exception):
    """The broker answered with an error code."""


class Control:
    """One blocking connection."""

    def __init__(self, host: str, port: int, timeout_s: float = 30.0) -> None:
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, api: int, version: int, body: bytes) -> bytes:
        """Send one request; the answer's body."""
        frame = struct.pack(">hhih", api, version, 1, len(CLIENT)) + CLIENT + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)[4:]

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self.socket.recv(size - len(received))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            received += part
        return bytes(received)

    def offers(self, api: int) -> bool:
        """Whether ApiVersions 0 lists this API."""
        answer = self.ask(API_VERSIONS, 0, b"")
        (count,) = struct.unpack_from(">i", answer, 2)
        return any(struct.unpack_from(">h", answer, 6 + 6 * index)[0] == api for index in range(count))

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """CreateTopics 4, then wait until each leader says that it serves its partition."""
        spec = text(name) + struct.pack(">ihii", partitions, -1, 0, 0)
        answer = self.ask(CREATE_TOPICS, 4, struct.pack(">i", 1) + spec + struct.pack(">ib", 10000, 0))
        (error,) = struct.unpack_from(">h", answer, 8 + 2 + len(name))
        if error:
            raise Refused(f"CreateTopics {name}: error {error}")
        for partition in range(partitions):
            for _ in attempts(10.0):
                if self._serves(name, partition):
                    break
            else:
                raise Refused(f"partition {partition} of {name} is not served")

    def _serves(self, name: str, partition: int) -> bool:
        place = text(name) + struct.pack(">iiq", 1, partition, -1)
        answer = self.ask(LIST_OFFSETS, 1, struct.pack(">ii", -1, 1) + place)
        (error,) = struct.unpack_from(">h", answer, 4 + 2 + len(name) + 4 + 4)
        return bool(error == 0)

    def delete_topic(self, name: str) -> None:
        """DeleteTopics 1; what the broker thinks of it does not matter to a measurement."""
        self.ask(DELETE_TOPICS, 1, struct.pack(">i", 1) + text(name) + struct.pack(">i", 10000))

    def produce_one(self, name: str) -> int:
        """Produce 3 of one record with acks all; its offset."""
        batch = one_record_batch(os.urandom(100))
        body = (
            struct.pack(">hhii", -1, -1, 10000, 1)
            + text(name)
            + struct.pack(">iii", 1, 0, len(batch))
            + batch
        )
        answer = self.ask(PRODUCE, 3, body)
        error, offset = struct.unpack_from(">hq", answer, 4 + 2 + len(name) + 4 + 4)
        if error:
            raise Refused(f"Produce {name}: error {error}")
        return int(offset)

    def close(self) -> None:
        self.socket.close()


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def one_record_batch(value: bytes) -> bytes:
    """A record batch (magic 2) with one record; lengths below 8192 take two bytes as varints."""

    def varint(number: int) -> bytes:
        zigzag = number << 1
        return bytes((zigzag,)) if zigzag < 0x80 else bytes((zigzag & 0x7F | 0x80, zigzag >> 7))

    record = b"\0\0\0\1" + varint(len(value)) + value + b"\0"
    now_ms = time.time_ns() // 1_000_000
    tail = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + varint(len(record)) + record
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c.crc32c(tail)) + tail


def attempts(limit_s: float) -> Iterator[None]:
    """Yield at short intervals until the time is over."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        yield
        time.sleep(PAUSE_S)


def first_produce(host: str, port: int, limit_s: float = 90.0) -> None:
    """Return as soon as a record is acknowledged, however often that has to be tried."""
    name = "first"
    for _ in attempts(limit_s):
        with contextlib.suppress(OSError, struct.error, Refused):
            control = Control(host, port, 5.0)
            try:
                with contextlib.suppress(Refused):  # an earlier attempt may have created it
                    control.create_topic(name)
                control.produce_one(name)
                return
            finally:
                control.close()
    raise Refused(f"no record was acknowledged within {limit_s:.0f} s")
