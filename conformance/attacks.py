"""Hostile peers for `conformance.abuse`: each attack is a function that does harm for a moment and lets go.

An attack may see its connection closed, get errors or get nothing: that is the broker's right. The broker may
not fall over, grow, or make others wait.
"""

import contextlib
import gzip
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from conformance.server import Server
from conformance.wire import batches, codec, definitions
from conformance.wire.batches import Item
from conformance.wire.connection import Closed, Connection, Silent, advertised

BOMB_BYTES = 512 << 20
PLAIN, RECOMPRESS = "abuse-plain", "abuse-lz4"
HALF_OPEN = 300
DEAF = 300
PIPELINED = 20_000


@dataclass
class Attacker:
    server: Server
    chance: random.Random
    versions: dict[str, tuple[int, int]] = field(default_factory=dict)
    held: list[socket.socket] = field(default_factory=list)
    bomb: bytes = b""

    def __post_init__(self) -> None:
        served = advertised(self.server.host, self.server.port)
        names = {key: name for name, key in definitions.api_keys().items()}
        self.versions = {names[key]: span for key, span in served.items() if key in names}
        self.bomb = _bomb()

    def connect(self, timeout_s: float = 2.0) -> socket.socket:
        return socket.create_connection((self.server.host, self.server.port), timeout_s)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection whose end by the broker's hand is no failure."""
        with (
            contextlib.suppress(Closed, Silent, OSError, codec.Malformed),
            Connection(self.server.host, self.server.port, timeout_s=3.0) as connection,
        ):
            yield connection

    def request(self) -> tuple[str, int, bytes]:
        """A random API and version with an encoded body, mostly empty but right."""
        api = self.chance.choice(sorted(self.versions))
        version = self.chance.randint(*self.versions[api])
        try:
            return api, version, codec.encode(definitions.request(api, version), version, {})
        except (KeyError, struct.error, TypeError, AttributeError):
            return "ApiVersions", 0, b""

    def release(self) -> None:
        for each in self.held:
            each.close()
        self.held.clear()


def _bomb() -> bytes:
    """Gzip that is small on the wire and enormous when opened."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    return b"".join(packer.compress(zeros) for _ in range(BOMB_BYTES >> 20)) + packer.flush()


Attack = Callable[[Attacker], None]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.replace("_", " ")] = function
    return function


@attack
def random_bytes(attacker: Attacker) -> None:
    with contextlib.suppress(OSError), attacker.connect() as peer:
        peer.sendall(attacker.chance.randbytes(attacker.chance.randrange(1, 5000)))


@attack
def random_frames(attacker: Attacker) -> None:
    with attacker.connection() as connection:
        for _ in range(20):
            connection.send_frame(attacker.chance.randbytes(attacker.chance.randrange(0, 400)))


@attack
def random_bodies(attacker: Attacker) -> None:
    """A right header before rubbish, for every API."""
    with attacker.connection() as connection:
        api, version, _ = attacker.request()
        message = definitions.request(api, version)
        rubbish = attacker.chance.randbytes(attacker.chance.randrange(0, 200))
        connection.send_body(message.api_key, version, rubbish, message.is_flexible(version))
        connection.receive_frame()


@attack
def flipped_requests(attacker: Attacker) -> None:
    with attacker.connection() as connection:
        api, version, body = attacker.request()
        if api in ("CreateTopics", "DeleteTopics"):
            return
        flipped = bytearray(body)
        for _ in range(min(3, len(flipped))):
            flipped[attacker.chance.randrange(len(flipped))] = attacker.chance.randrange(256)
        message = definitions.request(api, version)
        connection.send_body(message.api_key, version, bytes(flipped), message.is_flexible(version))
        connection.receive_frame()


@attack
def truncated_frames(attacker: Attacker) -> None:
    with attacker.connection() as connection:
        records = batches.batch([Item(b"v" * 100, b"k")])
        data = {"PartitionData": [{"Index": 0, "Records": records}]}
        body = codec.encode(
            definitions.request("Produce", 9), 9, {"Acks": -1, "TopicData": [{"Name": PLAIN, **data}]}
        )
        frame = connection.header(0, 9, True) + body
        whole = struct.pack(">i", len(frame)) + frame
        connection.send_bytes(whole[: attacker.chance.randrange(len(whole))])


@attack
def huge_lengths(attacker: Attacker) -> None:
    for size in (0x7FFFFFFF, -1, -0x80000000, 0, 3, 200 << 20, 0x7FFFFFF0):
        with contextlib.suppress(OSError), attacker.connect() as peer:
            peer.sendall(struct.pack(">i", size) + b"\0\x03\0\x01\0\0\0\x07\xff\xff" + bytes(1000))


@attack
def huge_counts(attacker: Attacker) -> None:
    most = b"\x7f\xff\xff\xff"
    varint = b"\xff\xff\xff\xff\x0f"
    cases = (
        (3, 1, most, False),
        (3, 12, varint, True),
        (0, 3, b"\xff\xff\xff\xff\0\0\x10\0" + most, False),
        (0, 9, b"\0\xff\xff\0\0\x10\0" + varint, True),
        (1, 4, b"\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\0" + most, False),
        (1, 12, b"\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" + varint, True),
        (19, 5, varint, True),
        (32, 1, most, False),
        (2, 1, b"\xff\xff\xff\xff" + most, False),
        (18, 3, varint + b"x", True),
    )
    for key, version, body, flexible in cases:
        with attacker.connection() as connection:
            connection.send_body(key, version, body, flexible)
            connection.receive_frame()


@attack
def decompression_bombs(attacker: Attacker) -> None:
    """Where a broker must open records: topics that compress anew, old message sets, old answers."""
    for topic in (RECOMPRESS, PLAIN):
        with attacker.connection() as connection:
            batch = batches.batch([Item(b"v", b"k")], codec=batches.GZIP, records=attacker.bomb)
            _produce(connection, 8, topic, batch)
        with attacker.connection() as connection:
            _produce(connection, 2, topic, batches.message(Item(attacker.bomb), 1, codec=batches.GZIP))
    with attacker.connection() as connection:
        asked = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
        body = {"MaxWaitMs": 10, "MinBytes": 0, "Topics": [{"Topic": PLAIN, "Partitions": [asked]}]}
        connection.send("Fetch", 2, body)
        connection.receive_frame()


def _produce(connection: Connection, version: int, topic: str, records: bytes) -> None:
    data = {"PartitionData": [{"Index": 0, "Records": records}]}
    connection.send(
        "Produce", version, {"Acks": -1, "TimeoutMs": 2000, "TopicData": [{"Name": topic, **data}]}
    )
    connection.receive_frame()


@attack
def wrong_crcs(attacker: Attacker) -> None:
    with attacker.connection() as connection:
        for _ in range(20):
            _produce(
                connection, 8, PLAIN, batches.batch([Item(b"v")], crc=attacker.chance.randrange(1 << 32))
            )


@attack
def lying_batches(attacker: Attacker) -> None:
    """Batches whose counts and lengths promise more than they hold."""
    with attacker.connection() as connection:
        some = [Item(b"v", b"k")]
        packed = gzip.compress(b"\x7f" * 1000)
        for changes in (
            {"count": 0x7FFFFFFF, "last_offset_delta": 0x7FFFFFFE},
            {"length": 0x7FFFFFFF},
            {"codec": 1, "records": packed, "count": 1 << 30, "last_offset_delta": (1 << 30) - 1},
            {"last_offset_delta": 0x7FFFFFFF},
        ):
            _produce(connection, 8, PLAIN, batches.batch(some, **changes))
            _produce(connection, 8, RECOMPRESS, batches.batch(some, **changes))


@attack
def half_open(attacker: Attacker) -> None:
    """Hundreds that connect and say nothing, or half a word; held until the end of the run."""
    while len(attacker.held) < HALF_OPEN:
        try:
            peer = attacker.connect()
            peer.sendall(
                attacker.chance.choice(
                    (b"", b"\0", b"\0\0\1", b"\0\0\1\0\0\x03\0\x01", b"\0\x10\0\0" + bytes(500))
                )
            )
        except OSError:
            return
        attacker.held.append(peer)


@attack
def drip(attacker: Attacker) -> None:
    with contextlib.suppress(OSError), attacker.connect() as peer:
        for byte in b"\0\0\0\x40\0\x03\0\x01\0\0\0\x07\0\x04drip":
            peer.sendall(bytes([byte]))
            time.sleep(0.01)


@attack
def deaf_readers(attacker: Attacker) -> None:
    """Asks for a megabyte again and again and never reads: the broker must stop listening to it."""
    with contextlib.suppress(OSError, Closed, Silent):
        connection = Connection(attacker.server.host, attacker.server.port, timeout_s=0.3)
        attacker.held.append(connection.socket)
        asked = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
        body = {"MaxWaitMs": 0, "MinBytes": 0, "Topics": [{"Topic": "abuse-large", "Partitions": [asked]}]}
        for _ in range(2000):
            connection.send("Fetch", 11, body)


@attack
def deaf_crowds(attacker: Attacker) -> None:
    """Hundreds at once that ask for a megabyte and never read: together more than a broker has."""
    crowd: list[socket.socket] = []
    asked = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1 << 20}
    body = {"MaxWaitMs": 0, "MinBytes": 0, "Topics": [{"Topic": "abuse-large", "Partitions": [asked]}]}
    for _ in range(DEAF):
        with contextlib.suppress(OSError, Closed, Silent):
            connection = Connection(attacker.server.host, attacker.server.port, timeout_s=0.3)
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            crowd.append(connection.socket)
            for _again in range(20):
                connection.send("Fetch", 11, body)
    time.sleep(0.5)
    for each in crowd:
        each.close()


@attack
def half_frames(attacker: Attacker) -> None:
    """Hundreds that send half of a large request and then nothing."""
    crowd: list[socket.socket] = []
    for _ in range(HALF_OPEN):
        with contextlib.suppress(OSError):
            peer = attacker.connect(0.3)
            crowd.append(peer)
            peer.sendall(b"\0\x10\0\0" + bytes(600_000))
    time.sleep(0.5)
    for each in crowd:
        each.close()


@attack
def pipelined_floods(attacker: Attacker) -> None:
    """Twenty thousand requests in one write: they may take their time, others must have their turns."""
    with attacker.connection() as connection:
        frame = connection.header(18, 0, False)
        connection.send_bytes((struct.pack(">i", len(frame)) + frame) * PIPELINED)
        for _ in range(PIPELINED):
            connection.receive_frame()


@attack
def resets(attacker: Attacker) -> None:
    """Connections torn down by a reset in the middle of an answer."""
    for _ in range(20):
        with contextlib.suppress(OSError), attacker.connect() as peer:
            frame = struct.pack(">hhi", 18, 0, 1) + b"\xff\xff"
            peer.sendall((struct.pack(">i", len(frame)) + frame) * 10)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
