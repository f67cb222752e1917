"""Records at a glance: what clients build is in order; what is damaged is found or harmless."""

from collections.abc import Callable, Iterator
from random import Random

import pytest
from conformance.wire import batches
from conformance.wire.batches import zigzag
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import skim
from penstock.wire.batch import HEADER_SIZE, Record, build_batch, open_block, read_header
from penstock.wire.buffers import Buffer
from penstock.wire.compression import NONE
from penstock.wire.errors import BatchError
from penstock.wire.skim import FIRST, SHAPE_BYTES, WHOLE_MAX, in_order, shape
from penstock.wire.validation import validate_records
from tests.wire.clients import build
from tests.wire.test_batch import CODECS, RECORDS, numbered, records_strategy


def skimmed(batch: Buffer) -> bool:
    header = read_header(batch)
    return in_order(open_block(memoryview(batch), 0, header), header.record_count)


def plain(count: int, value: Callable[[int], bytes | None], codec: int = NONE) -> bytearray:
    return build_batch([Record(at, 1_000 + at, b"k", value(at)) for at in range(count)], codec=codec)


@pytest.mark.parametrize("client", ["kafka-python", "aiokafka"])
@pytest.mark.parametrize("codec", CODECS)
def test_what_clients_build(client: str, codec: int) -> None:
    for count in (1, 3, WHOLE_MAX, WHOLE_MAX + 1, 64, 65, 200):
        assert skimmed(build(client, 2, codec, RECORDS[:count])), count


@given(records_strategy, st.sampled_from(CODECS))
def test_whatever_is_built(records: list[Record], codec: int) -> None:
    assert skimmed(build_batch(numbered(records), codec=codec))
    items = [batches.Item(one.value, one.key, one.timestamp, one.headers) for one in records]
    assert skimmed(batches.batch(items, codec=codec))


@pytest.mark.parametrize(
    "count", [1, 2, FIRST + 1, WHOLE_MAX, WHOLE_MAX + 1, 63, 64, 65, 66, 8192, 8193, 8194]
)
@pytest.mark.parametrize("size", [None, 0, 1, 57, 58, 63, 64, 65, 300])
def test_every_number_of_records_of_every_size(count: int, size: int | None) -> None:
    random = Random(1)
    assert skimmed(plain(count, lambda at: None if size is None else random.randbytes(size)))
    assert skimmed(
        plain(count, lambda at: None if size is None else random.randbytes(random.randint(0, size)))
    )


@pytest.mark.parametrize("size", [5_000, 70_000, 300_000])
def test_the_last_record_may_be_long(size: int) -> None:
    """The search for it goes back as far as needed. Its value may hold what looks like its offset."""
    for filler in (b"\0", b"x", zigzag(99), zigzag(99)[:1]):
        value = (filler * size)[:size]
        batch = plain(100, lambda at, value=value: value if at == 99 else b"short")  # type: ignore[misc]
        tricky = filler == zigzag(99)
        assert skimmed(batch) is not tricky, "after too many tries all records are read"
        assert not faults(batch)


def faults(batch: Buffer) -> bool:
    """The verdict of who reads all records."""
    header = read_header(batch)
    try:
        block = open_block(memoryview(batch), 0, header)
        return bool(validate_records(block, header, None, keys_required=False))
    except BatchError:
        return True


def parses(block: bytes, count: int) -> bool:
    """The verdict of a reader that knows nothing of Penstock, and no more than the format: KIP-98."""

    def number(width: int) -> int:
        value = shift = 0
        while True:
            byte = next(unread)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
            if shift == width:
                raise ValueError

    def skip(size: int) -> None:
        for _ in range(size):
            next(unread)

    unread: Iterator[int] = iter(block)
    for index in range(count):
        try:
            size = number(35)
            body = bytes(next(unread) for _ in range(max(size, 0)))
        except (RuntimeError, StopIteration, ValueError):
            return False
        rest, unread = unread, iter(body)
        try:
            skip(1)
            number(70)
            if number(35) != index:
                return False
            skip(number(35))
            skip(number(35))
            headers = number(35)
            if headers < 0:
                return False
            for _ in range(headers):
                key_size = number(35)
                if key_size < 0:
                    return False
                skip(key_size)
                skip(number(35))
        except (StopIteration, ValueError):
            return False
        if next(unread, None) is not None:
            return False
        unread = rest
    return next(unread, None) is None


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("size", [5, 100])
def test_every_changed_byte_is_found_or_harmless(keyed: bool, size: int) -> None:
    """Each byte of a small batch with each of some changes: nothing that cannot be read gets through, and
    what can be read is not refused."""
    random = Random(size)
    headers: tuple[tuple[str, bytes | None], ...] = (("h", b"1"), ("n", None)) if keyed else ()
    records = [
        Record(at, 1_000 + 50 * at, b"key" if keyed else None, random.randbytes(size), headers)
        for at in range(4)
    ]
    good = build_batch(records)
    refused = 0
    for at in range(HEADER_SIZE, len(good)):
        for change in (1, 2, 3, 0x40, 0x7F, 0x80, 0x81, 0xFF):
            bad = bytearray(good)
            bad[at] ^= change
            expected = parses(bytes(bad[HEADER_SIZE:]), len(records))
            assert faults(bad) is not expected, (at, change)
            assert expected or not skimmed(bad), (at, change)
            refused += not expected
    assert refused > 4 * 7 * 8 * 0.5, "most of what is not key or value matters"


@given(records_strategy, st.data())
def test_cut_off_doubled_or_mixed_up(records: list[Record], data: st.DataObject) -> None:
    block = bytes(build_batch(numbered(records))[HEADER_SIZE:])
    start = data.draw(st.integers(0, len(block)))
    stop = data.draw(st.integers(start, len(block)))
    at = data.draw(st.integers(0, len(block)))
    changed = block[:at] + block[start:stop] + block[data.draw(st.integers(at, len(block))) :]
    count = data.draw(st.sampled_from([len(records), len(records) + 1, max(1, len(records) - 1)]))
    assert not in_order(changed, count) or parses(changed, count)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [WHOLE_MAX + 1, 64, 65, 500, 9_000])
def test_what_is_found_in_a_large_batch(count: int, codec: int) -> None:
    random = Random(count)
    sizes = [random.randint(0, 200) for _ in range(count)]
    block = bytes(plain(count, lambda at: random.randbytes(sizes[at]))[HEADER_SIZE:])
    header = read_header(plain(count, lambda at: b"", codec=codec))
    assert in_order(block, count)
    assert not in_order(block, count + 1)
    assert not in_order(block, count - 1)
    assert not in_order(block[:-1], count)
    assert not in_order(block + b"\0", count)
    assert not in_order(block[: len(block) // 2], count)
    assert not in_order(block[: len(block) // 2] + random.randbytes(len(block) // 2), count)
    assert not in_order(random.randbytes(len(block)), count)
    assert not in_order(bytes(len(block)), count)
    assert header.record_count == count


def test_numbers_that_no_client_would_send() -> None:
    assert not in_order(b"", 1)
    assert not in_order(bytes(100), 2**31 - 1)
    assert not in_order(b"\xff" * 100, 1)
    assert not in_order(b"\x80" * 100, 1)


def test_an_exception_is_not_kept() -> None:
    """One that is raised again and again would grow by its tracebacks."""
    assert not [one for one in vars(skim).values() if isinstance(one, BaseException)]


def test_a_shape_tells_all_of_a_record() -> None:
    random = Random(5)
    for size in (*range(3, 130), 1024, 8000, 8184, 8185, 9000):
        for key in (None, b"", b"k"):
            for headers in ((), (("h", b""),)):
                value = random.randbytes(size)
                block = bytes(build_batch([Record(0, 5, key, value, headers)], codec=NONE)[HEADER_SIZE:])
                found = shape(block)
                if found is None:
                    assert key or headers or size > 8000, (size, key, headers)
                    continue
                assert len(found) == SHAPE_BYTES and not key and not headers
                other = found + random.randbytes(len(block) - len(found) - 1) + b"\0"
                assert parses(other, 1)
