"""Readers that take no answer: what they hold is bounded together, whatever the buffers of the kernel are.

What the kernel holds is not the broker's memory, so the sizes of the sockets' buffers decide how much of an
answer is left with the broker. They are set here, small and large, and it is looked at whether answers are
really left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import random
import socket
import struct
import termios
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from penstock.admin.records import ReaderPositions, Sender
from penstock.cli.client import Client
from penstock.testing import Broker
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.batch import Record
from penstock.wire.codec import encode
from penstock.wire.headers import request_header
from tests.testing.test_abuse import Healthy, framed, memory_of

READERS = 60
DEAF_MIN = 10
"""So many hold an answer at once, or the test shows nothing. Some are closed before the last has asked."""
BUDGET_BYTES = 30_000_000
"""`queued.max.request.bytes`. A quarter more is a reserve for those who do take their answers."""
EACH_BYTES = 1_000_000
"""What each reader may cost besides: its connection, and what the allocator leaves between buffers."""
RECORDS = 100
RECORD_BYTES = 100_000
CONVERTED = 2
BATCHES = 11
"""Versions of Fetch: message sets are made for the one, the other gets what is stored."""


class Buffers(NamedTuple):
    """Of the broker's sockets and of the readers'."""

    send_bytes: int
    receive_bytes: int


SMALL = Buffers(32_768, 4_096)
LARGE = Buffers(150_000, 100_000)


class Scene(NamedTuple):
    buffers: Buffers
    version: int = BATCHES
    store: str | None = None
    tail_cache_bytes: int = 2_000_000


SCENES = {
    "stored, small buffers": Scene(SMALL),
    "stored, large buffers": Scene(LARGE),
    "stored in objects": Scene(LARGE, store="memory://"),
    "in the cache": Scene(SMALL, tail_cache_bytes=64_000_000),
    "converted": Scene(SMALL, CONVERTED),
    "converted from the cache, large buffers": Scene(LARGE, CONVERTED, tail_cache_bytes=64_000_000),
}


@contextlib.contextmanager
def readers(broker: Broker, scene: Scene) -> Iterator[list[socket.socket]]:
    """Each asks for everything and takes nothing."""
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50_000_000)
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50_000_000,
        topics=[FetchTopic(topic="large", partitions=[asked])],
    )
    frame = framed(request_header(1, scene.version, 1, "deaf") + encode(request, scene.version))
    with contextlib.ExitStack() as opened:
        connections = []
        for _ in range(READERS):
            connection = opened.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, scene.buffers.receive_bytes)
            connection.connect((broker.host, broker.port))
            connection.sendall(frame)
            connections.append(connection)
        yield connections


def left_behind(connection: socket.socket, scene: Scene) -> bool:
    """Is there an answer that the kernel cannot have taken all of?"""
    (readable,) = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))
    if readable < 4:
        return False
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_PEEK))
    # The kernel gives a socket twice what it is asked for.
    return bool(size > readable + 2 * scene.buffers.send_bytes)


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_readers_that_take_no_answer_are_bounded_together(scene: Scene) -> None:
    settings = {
        "queued.max.request.bytes": BUDGET_BYTES,
        "tail.cache.bytes": scene.tail_cache_bytes,
        "socket.send.buffer.bytes": scene.buffers.send_bytes,
        # Nothing is settled meanwhile: a store in memory would hold it twice.
        "wal.settle.interval.ms": 3_600_000,
    }
    with (
        Broker(process=True, store=scene.store, settings=settings) as broker,
        Client(broker.bootstrap_servers) as client,
    ):
        sender = Sender(client, "large", client.partitions("large", create=True), 0, -1)
        block = random.Random(5).randbytes(RECORD_BYTES)
        for number in range(RECORDS):
            sender.send(Record(value=b"%d" % number + block), 0)
            sender.flush()
        with Healthy(broker.bootstrap_servers):
            before = most = memory_of(broker, "VmRSS")
            with readers(broker, scene) as connections:
                deaf = 0
                until = time.monotonic() + 2
                while time.monotonic() < until:
                    most = max(most, memory_of(broker, "VmRSS"))
                    deaf = max(deaf, sum(left_behind(one, scene) for one in connections))
                assert deaf >= DEAF_MIN, (
                    f"the kernel took all answers but {deaf}: this machine's buffers are larger than they "
                    "were told to be, and there is nothing to test with"
                )
                # Whoever does read gets on beside them.
                position = ReaderPositions(client, "large", [0], "beginning", False)
                sizes = [len(found[1].value or b"") for found in position.records(follow=False) if found]
                assert len(sizes) == RECORDS
                most = max(most, memory_of(broker, "VmHWM"))
            assert most - before < BUDGET_BYTES * 5 // 4 + READERS * EACH_BYTES
