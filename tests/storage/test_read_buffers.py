"""Buffers that are read into again: never while anybody can still see what was read before."""

from penstock.storage.stores.read_buffers import SMALL_BYTES, ReadBuffers

LARGE = 4 * SMALL_BYTES


def owner(buffer: bytearray | memoryview) -> int:
    return id(buffer.obj if isinstance(buffer, memoryview) else buffer)


def test_a_buffer_is_used_again_when_nobody_refers_to_it() -> None:
    buffers = ReadBuffers()
    first = buffers.take(LARGE)
    seen = owner(first)
    del first
    again = buffers.take(LARGE - 100)
    assert owner(again) == seen and len(again) == LARGE - 100


def test_a_view_of_one_byte_keeps_a_buffer() -> None:
    buffers = ReadBuffers()
    first = buffers.take(LARGE)
    first[7] = 42
    part = memoryview(first)[7:8]
    del first
    others = [buffers.take(LARGE) for _ in range(3)]
    for other in others:
        other[:] = bytes(LARGE)
    assert part[0] == 42
    assert len({owner(buffer) for buffer in (part, *others)}) == 4


def test_what_is_kept_is_bounded() -> None:
    buffers = ReadBuffers(bytes_max=3 * LARGE)
    held = [buffers.take(LARGE) for _ in range(10)]
    assert buffers.kept_bytes <= 3 * LARGE
    assert len({owner(buffer) for buffer in held}) == 10
    buffers.take(20 * LARGE)
    assert buffers.kept_bytes == 0


def test_a_small_read_holds_no_large_buffer() -> None:
    buffers = ReadBuffers()
    large = owner(buffers.take(LARGE))
    for length in (0, 1, SMALL_BYTES - 1, LARGE // 2):
        found = buffers.take(length)
        assert len(found) == length and owner(found) != large
