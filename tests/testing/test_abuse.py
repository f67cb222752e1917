"""Bad input of every kind: the broker stays up, its memory stays flat, a healthy client notices nothing."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.admin.offsets import LATEST, list_offset
from penstock.admin.records import Sender
from penstock.broker.registry import APIS
from penstock.cli.client import Client
from penstock.testing import Broker
from penstock.testing.hosts import ProcessHost
from penstock.wire import compression
from penstock.wire.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.batch import HEADER_SIZE, Record, build_batch, refresh_crc
from penstock.wire.codec import encode
from penstock.wire.headers import request_header

GROWTH_BYTES_MAX = 48 * 1024 * 1024
"""What a run may add to the broker's memory: code of handlers first used, and the tail cache."""


class Healthy:
    """A client that produces all the while, and counts what was acknowledged and how long it took."""

    def __init__(self, bootstrap: str) -> None:
        self._client = Client(bootstrap)
        self._sender = Sender(self._client, "healthy", self._client.partitions("healthy", create=True), 0, -1)
        self._began = list_offset(self._client, "healthy", 0, LATEST)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged = 0
        self.slowest = 0.0
        self.failure: Exception | None = None

    def __enter__(self) -> Healthy:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self._sender.send(Record(value=b"healthy"), 0)
                self._sender.flush()
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.acknowledged += 1
        except Exception as error:
            self.failure = error

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with self._client as client:
            assert self.failure is None
            assert self.acknowledged > 0
            assert list_offset(client, "healthy", 0, LATEST) == self._began + self.acknowledged


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "socket.request.max.bytes": 100_000_000,
        "queued.max.request.bytes": 100_000_000,
        "tail.cache.bytes": 8_000_000,
    }
    with Broker(process=True, settings=settings) as running:
        yield running


def memory_of(broker: Broker, field: str) -> int:
    """VmRSS, what the broker's process has in memory now, or VmHWM, the most it ever had."""
    pid = cast(ProcessHost, broker._host).pid
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such process")


@pytest.fixture(autouse=True)
def flat_memory(broker: Broker) -> Iterator[None]:
    with Healthy(broker.bootstrap_servers):
        before = memory_of(broker, "VmRSS")
        yield
        # What connections held goes with them, once the broker has noticed that they are gone.
        deadline = time.monotonic() + 60
        while memory_of(broker, "VmRSS") - before >= GROWTH_BYTES_MAX:
            assert time.monotonic() < deadline, "memory stays behind"


def connect(broker: Broker) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), 30)


def throw(broker: Broker, data: bytes) -> None:
    """Send, and wait until the broker has dealt with it one way or the other."""
    with connect(broker) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # The broker closed it before all of that was said.
                raise


def framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


def test_random_bytes(broker: Broker) -> None:
    seeded = random.Random(1)
    for _ in range(200):
        throw(broker, seeded.randbytes(seeded.randrange(1, 3000)))


def test_random_bodies_behind_right_headers(broker: Broker) -> None:
    seeded = random.Random(2)
    for row in APIS.values():
        for version in range(row.min_version, row.max_version + 1):
            header = request_header(row.key, version, 1, "fuzz")
            throw(broker, framed(header + seeded.randbytes(seeded.randrange(0, 200))))
            # Counts and lengths of two thousand million, over and over.
            throw(broker, framed(header + b"\x7f\xff\xff\xff" * 20))
            throw(broker, framed(header + b"\xff\xff\xff\xff\x07" * 20))


def test_half_open_connections_by_the_hundred(broker: Broker) -> None:
    seeded = random.Random(3)
    connections = [connect(broker) for _ in range(400)]
    try:
        for number, connection in enumerate(connections):
            if number % 4 == 0:
                connection.sendall(struct.pack(">i", 100_000_000) + seeded.randbytes(100))
            elif number % 4 == 1:
                connection.sendall(b"\0\0")
            elif number % 4 == 2:
                connection.sendall(framed(request_header(3, 1, 1, "half") + b"\0\0\0\0")[:-2])
        throw(broker, b"\xff" * 100)
    finally:
        for connection in connections:
            connection.close()


def produce_frame(records: bytes | bytearray, topic: str = "abused", acks: int = -1) -> bytes:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(records=records)])
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[data])
    return framed(request_header(0, 9, 1, "abuse") + encode(request, 9))


def test_bad_batches(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.partitions("abused", create=True)
    seeded = random.Random(4)
    good = build_batch([Record(offset=at, value=b"v" * 20) for at in range(5)])
    for _ in range(300):
        broken = bytearray(good)
        for _ in range(seeded.randrange(1, 4)):
            broken[seeded.randrange(len(broken))] = seeded.randrange(256)
        throw(
            broker,
            produce_frame(broken[: seeded.randrange(len(broken))] if seeded.random() < 0.3 else broken),
        )


def test_decompression_bombs(broker: Broker) -> None:
    with Client(broker.bootstrap_servers) as client:
        topic = CreatableTopic(
            name="bombed",
            num_partitions=1,
            replication_factor=-1,
            configs=[CreatableTopicConfig(name="cleanup.policy", value="compact")],
        )
        client.any().ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), CreateTopicsResponse)
    for codec in (compression.GZIP, compression.LZ4, compression.ZSTD, compression.SNAPPY):
        block = compression.compress(codec, bytes(12 * 1024 * 1024))
        bomb = build_batch([Record(value=b"x")])[:HEADER_SIZE] + block
        struct.pack_into(">i", bomb, 8, len(bomb) - 12)
        struct.pack_into(">h", bomb, 21, codec)
        refresh_crc(bomb)
        throw(broker, produce_frame(bomb, "bombed"))


def test_a_flood_of_large_frames_that_never_end(broker: Broker) -> None:
    connections = [connect(broker) for _ in range(20)]
    try:
        for connection in connections:
            connection.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                connection.sendall(struct.pack(">i", 90_000_000) + bytes(200_000))
    finally:
        for connection in connections:
            connection.close()
