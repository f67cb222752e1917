"""Each codec against the libraries that clients use, and against data that means harm."""

import gzip
import resource
import zlib
from collections.abc import Callable
from random import Random

import cramjam
import pytest
from aiokafka import codec as aio
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress
from penstock.wire.errors import WireError

RANDOM = Random(1)
SAMPLES = [
    b"",
    b"a",
    b"0123456789" * 50,
    RANDOM.randbytes(200_000),
    bytes(1_000_000),
    b"".join(b'{"id":%d,"name":"%d"}' % (n, n * n) for n in range(20_000)),
]
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]


def _zstd_stream(data: bytes) -> bytes:
    """As Java writes it: in pieces, so that the frame does not know its size."""
    stream = cramjam.zstd.Compressor()
    for start in range(0, len(data), 10_000):
        stream.compress(data[start : start + 10_000])
    return bytes(stream.finish())


WRITERS: list[tuple[int, Callable[[bytes], bytes]]] = [
    (GZIP, aio.gzip_encode),
    (GZIP, gzip.compress),
    (GZIP, lambda data: gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])),
    (SNAPPY, aio.snappy_encode),
    (SNAPPY, lambda data: bytes(aio.snappy_encode(data, xerial_compatible=False))),
    (SNAPPY, lambda data: compress(SNAPPY, data[:7]) + compress(SNAPPY, data[7:])),
    (LZ4, aio.lz4_encode),
    (LZ4, lambda data: bytes(cramjam.lz4.compress(data))),
    (ZSTD, aio.zstd_encode),
    (ZSTD, lambda data: bytes(cramjam.zstd.compress(data, 19))),
    (ZSTD, _zstd_stream),
]
READERS: list[tuple[int, Callable[[bytes], bytes]]] = [
    (GZIP, aio.gzip_decode),
    (SNAPPY, aio.snappy_decode),
    (LZ4, aio.lz4_decode),
    (ZSTD, aio.zstd_decode),
]


@pytest.mark.parametrize("data", SAMPLES, ids=len)
@pytest.mark.parametrize(("codec", "write"), WRITERS)
def test_reads_what_clients_write(codec: int, write: Callable[[bytes], bytes], data: bytes) -> None:
    compressed = write(data)
    assert bytes(decompress(codec, compressed, len(data))) == data
    assert bytes(decompress(codec, memoryview(compressed), len(data) * 10)) == data


@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
@pytest.mark.parametrize(("codec", "read"), READERS)
def test_clients_read_what_it_writes(codec: int, read: Callable[[bytes], bytes], data: bytes) -> None:
    assert bytes(read(compress(codec, data))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_levels(codec: int) -> None:
    data = SAMPLES[-1]
    strong = compress(codec, data, 12 if codec == LZ4 else 9)
    assert len(strong) < len(compress(codec, data)) or codec in (GZIP, SNAPPY)
    assert bytes(decompress(codec, strong, len(data))) == data


def test_lz4_blocks_are_independent() -> None:
    """Java's reader refuses frames whose blocks refer to earlier ones."""
    for level in (None, 1, 9, 12):
        assert compress(LZ4, b"x" * 200_000, level)[4] & 0x20


@pytest.mark.parametrize("codec", [NONE, *CODECS])
def test_the_limit_is_exact(codec: int) -> None:
    for data in SAMPLES[1:]:
        compressed = compress(codec, data)
        assert bytes(decompress(codec, compressed, len(data))) == data
        with pytest.raises(WireError, match="expand to more than"):
            decompress(codec, compressed, len(data) - 1)


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (GZIP, lambda size: zlib.compress(bytes(size), 9, 31)),
        (LZ4, lambda size: compress(LZ4, bytes(size))),
        (SNAPPY, lambda size: compress(SNAPPY, bytes(size))),
        (ZSTD, lambda size: bytes(cramjam.zstd.compress(bytes(size)))),
        (ZSTD, lambda size: b"\x28\xb5\x2f\xfd\x00\x58" + b"\x02\x00\x10\x00" * (size // 131_072)),
    ],
    ids=["gzip", "lz4", "snappy", "zstd", "zstd-run-length"],
)
def test_bombs_are_refused_without_memory(codec: int, bomb: Callable[[int], bytes]) -> None:
    data = bomb(200_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        with pytest.raises(WireError):
            decompress(codec, data, 1_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_what_follows_a_gzip_member_is_not_copied_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty member has twenty bytes, and zlib keeps a copy of what is left behind it."""
    members = 20_000
    copied = 0
    begin = zlib.decompressobj

    class Counted:
        def __init__(self, window: int) -> None:
            self._member = begin(window)

        def __getattr__(self, name: str) -> object:
            return getattr(self._member, name)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal copied
            part = self._member.decompress(data, most)
            copied += len(self._member.unused_data)
            return part

    monkeypatch.setattr(zlib, "decompressobj", Counted)
    data = (
        zlib.compress(b"first", 6, 31) + zlib.compress(b"", 6, 31) * members + zlib.compress(b"last", 6, 31)
    )
    assert bytes(decompress(GZIP, data, 1000)) == b"firstlast"
    assert copied < members * 5000


@pytest.mark.parametrize("pieces", [2, 3, 700])
def test_gzip_members_end_anywhere(pieces: int) -> None:
    for data in (SAMPLES[2], SAMPLES[3], SAMPLES[5]):
        size = len(data) // pieces + 1
        joined = b"".join(gzip.compress(data[at : at + size]) for at in range(0, len(data), size))
        assert bytes(decompress(GZIP, joined, len(data))) == data
        assert bytes(decompress(GZIP, joined + b"\x1fno member", len(data))) == data
        with pytest.raises(WireError, match="expand to more than"):
            decompress(GZIP, joined, len(data) - 1)
        with pytest.raises(WireError, match="ends too soon"):
            decompress(GZIP, joined[:-3], len(data))


@pytest.mark.parametrize("chunk", [b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x04abc"])
def test_a_snappy_length_is_not_believed(chunk: bytes) -> None:
    with pytest.raises(WireError):
        decompress(SNAPPY, chunk, 1 << 31)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_data_is_refused_or_read(codec: int) -> None:
    random = Random(codec)
    compressed = compress(codec, SAMPLES[2])
    for _ in range(300):
        damaged = bytearray(compressed[: random.randint(1, len(compressed))])
        for _ in range(random.randint(0, 3)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            assert len(decompress(codec, damaged, 10_000)) <= 10_000
        except WireError:
            continue


@given(st.sampled_from(CODECS), st.binary(max_size=100))
def test_random_bytes_are_refused_or_read(codec: int, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, 10_000)) <= 10_000
    except WireError:
        return


def test_unknown_codecs() -> None:
    with pytest.raises(WireError, match="no codec has the number 5"):
        decompress(5, b"", 10)
    with pytest.raises(ValueError, match="no codec has the number 7"):
        compress(7, b"")
