"""Stored forms go there and back, and damage is found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.extents import EXTENT_BYTES, Extent, Extents, ExtentsError
from penstock.log.flush import (
    FILE_HEADER_SIZE,
    FLUSH_HEADER_SIZE,
    FileHeader,
    FlushError,
    check_index,
    decode_file_header,
    decode_flush_header,
    encode_file_header,
    encode_flush_header,
    encode_index,
    iter_blocks,
)
from penstock.log.manifest import Manifest, ManifestError, SegmentRef, decode_manifest, encode_manifest
from penstock.log.markers import AbortedTransaction
from penstock.log.producers import ProducerEntry, SequencedBatch
from penstock.log.segment import (
    TRAILER_SIZE,
    Footer,
    PieceRef,
    SegmentError,
    decode_footer,
    encode_footer,
    footer_size,
)
from penstock.wire.batch import HEADER_SIZE, Record, build_batch
from penstock.wire.markers import COMMIT, marker_batch

NONCE = b"8 bytes!"


def made(value: bytes, base_offset: int = 0) -> bytes:
    return bytes(build_batch([Record(base_offset, 5, None, value)]))


@given(
    st.lists(
        st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 5), st.lists(st.binary(), min_size=1))
    )
)
@settings(derandomize=True, max_examples=60)
def test_a_flush_there_and_back(contents: list[tuple[bytes, int, list[bytes]]]) -> None:
    blocks = [(topic, part, [made(value) for value in values]) for topic, part, values in contents]
    data = b"".join(one for _, _, batches in blocks for one in batches)
    index = encode_index(blocks)
    head = encode_flush_header(7, NONCE, len(data), index, 3, 1234)
    flush = head + data + index
    header = decode_flush_header(flush)
    assert (header.number, header.nonce, header.time_ms, header.size) == (7, NONCE, 1234, len(flush))
    check_index(header, flush[FLUSH_HEADER_SIZE + header.data_size :])
    found = [
        (
            block.topic_id,
            block.partition,
            [flush[b.position : b.position + b.header.size] for b in block.batches()],
        )
        for block in iter_blocks(index)
    ]
    assert found == blocks


def test_control_batches_are_in_the_index_whole() -> None:
    marker = bytes(marker_batch(COMMIT, 3, 1, 9, 77))
    index = encode_index([(b"t" * 16, 0, [made(b"a"), marker, made(b"b")])])
    (block,) = iter_blocks(index)
    first, control, second = block.batches()
    assert first.control == second.control == b""
    assert control.control == marker[HEADER_SIZE:]


def test_a_flush_that_is_cut_or_damaged_anywhere_is_none() -> None:
    one = made(b"value")
    index = encode_index([(b"t" * 16, 0, [one])])
    flush = encode_flush_header(0, NONCE, len(one), index, 1, 0) + one + index

    def read(stored: bytes) -> None:
        header = decode_flush_header(stored[:FLUSH_HEADER_SIZE])
        at = FLUSH_HEADER_SIZE + header.data_size
        check_index(header, stored[at : at + header.index_size])

    read(flush)
    for end in range(len(flush)):
        with pytest.raises(FlushError):
            read(flush[:end])
    for at in (*range(FLUSH_HEADER_SIZE), *range(FLUSH_HEADER_SIZE + len(one), len(flush))):
        with pytest.raises(FlushError):
            read(flush[:at] + bytes([flush[at] ^ 1]) + flush[at + 1 :])


def test_a_file_header_there_and_back() -> None:
    header = FileHeader(1, 3, 17, 4, 4, NONCE, b"b" * 16)
    stored = encode_file_header(header)
    assert len(stored) == FILE_HEADER_SIZE
    assert decode_file_header(stored + b"rest") == header
    for at in range(len(stored)):
        with pytest.raises(FlushError):
            decode_file_header(stored[:at] + bytes([stored[at] ^ 0x40]) + stored[at + 1 :])
        with pytest.raises(FlushError):
            decode_file_header(stored[:at])


_int64 = st.integers(-(2**63), 2**63 - 1)
_extent = st.builds(Extent, _int64, _int64, _int64, _int64, _int64, st.just(0))


@given(st.lists(_extent))
@settings(derandomize=True, max_examples=100)
def test_extents_there_and_back(items: list[Extent]) -> None:
    extents = Extents()
    for item in items:
        for column, value in zip(extents.columns(), item, strict=True):
            column.append(value)
    stored = extents.encode()
    again = Extents.decode(stored)
    assert [again[at] for at in range(len(again))] == items
    with pytest.raises(ExtentsError):
        Extents.decode(stored[:-1])
    with pytest.raises(ExtentsError):
        Extents.decode(stored + b"\0")


def test_neighbours_share_an_extent_up_to_a_size() -> None:
    extents = Extents()
    position = 0
    for offset in range(200):
        extents.append(offset, offset, 100 - offset, position, 1000)
        position += 1000
    assert len(extents) == 4 and max(extents.lengths) <= EXTENT_BYTES
    assert [extents.find(offset) for offset in (0, 64, 65, 199, 200)] == [0, 0, 1, 3, 4]
    assert extents[0].max_timestamp == 100
    assert extents.find_timestamp(36) == 0 and extents.find_timestamp(101) == 4
    extents.append(200, 200, 5, position + 1, 10)  # A gap in the file,
    extents.append(202, 202, 5, position + 11, 10)  # a gap in offsets,
    extents.append(203, 203, 5, position + 21, 10, file=1)  # another file.
    assert len(extents) == 7
    assert extents.total_bytes() == 200_030


_manifest = Manifest(
    b"t" * 16,
    3,
    500,
    (SegmentRef("segments/1/2/3", 0, 250, 1000, 99, "segments/1/2/3", 900, 64, 5, 7),),
    ((0, 0), (4, 250)),
    {
        7: ProducerEntry(1, (SequencedBatch(0, 4, 100, 104, 9),), 9, 10, 2, 100),
        2**62: ProducerEntry(0, (), -1, 0),
    },
    {7: 100},
    (AbortedTransaction(7, 10, 20, 21),),
)


def test_a_manifest_there_and_back() -> None:
    stored = encode_manifest(_manifest)
    again = decode_manifest(memoryview(stored))
    assert again == _manifest
    assert isinstance(again.producers[7], ProducerEntry)
    assert isinstance(again.producers[7].batches[0], SequencedBatch)
    for at in range(len(stored)):
        with pytest.raises(ManifestError):
            decode_manifest(stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :])
    with pytest.raises(ManifestError):
        decode_manifest(b"")


def test_a_footer_there_and_back() -> None:
    own, others = PieceRef(b"t" * 16, 0, 5, 9, 100, 64), PieceRef(b"u" * 16, 1, 0, 2, 164, 64, "wal/x")
    footer = Footer((own, others))
    stored = b"data" + encode_footer(footer)
    size = footer_size(stored[-TRAILER_SIZE:])
    assert decode_footer(stored[-size:]) == footer
    with pytest.raises(SegmentError):
        footer_size(b"x" * TRAILER_SIZE)
    with pytest.raises(SegmentError):
        decode_footer(b"\xff" + stored[-size + 1 :])
