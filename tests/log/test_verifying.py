"""Batches that come from the store: each read is checked, and what was read before by fewer checksums."""

import pytest

from penstock.log import verifying
from penstock.log.checking import Facts
from penstock.log.verifying import SUMMED_BATCHES_MIN, ExtentBytes, Sums, Verification
from penstock.wire.checksum import crc32c
from tests.storage.world import batch

COUNT = SUMMED_BATCHES_MIN + 2
FACTS = Facts(((3, 0), (7, COUNT // 2)), 0)


def extent(count: int = COUNT, index: int = 0) -> ExtentBytes:
    stored = bytearray()
    for offset in range(count):
        one = batch(b"record %d" % offset)
        one[:8] = offset.to_bytes(8, "big")
        one[12:16] = (3 if offset < COUNT // 2 else 7).to_bytes(4, "big")
        stored += one
    return ExtentBytes(memoryview(stored), 0, count - 1, b"a topic", index)


def verified(one: ExtentBytes, sums: Sums | None) -> Verification:
    check = Verification([one], FACTS, sums)
    while not check.step():
        pass
    return check


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each checksum was over."""
    sizes: list[int] = []

    def count(data: memoryview) -> int:
        sizes.append(len(data))
        return crc32c(data)

    monkeypatch.setattr(verifying, "crc32c", count)
    return sizes


def test_what_was_found_whole_is_known_by_one_checksum(counted: list[int]) -> None:
    sums, one = Sums(), extent()
    assert verified(one, sums).runs == [one.stored]
    assert len(counted) == COUNT + 1
    counted.clear()
    assert verified(one, sums).runs == [one.stored]
    assert counted == [len(one.stored)]


def test_few_batches_are_not_worth_a_checksum_more(counted: list[int]) -> None:
    sums, one = Sums(), extent(SUMMED_BATCHES_MIN - 1)
    for _ in range(2):
        counted.clear()
        assert verified(one, sums).runs == [one.stored]
        assert len(counted) == SUMMED_BATCHES_MIN - 1
    assert not len(sums)


def test_each_byte_that_rots_after_it_was_read_is_found() -> None:
    sums, one = Sums(), extent()
    verified(one, sums)
    size = len(one.stored) // COUNT
    for at in range(len(one.stored)):
        one.stored[at] ^= 1
        check = verified(one, sums)
        assert [(lost.start, lost.end) for lost in check.lost] == [(at // size, at // size + 1)]
        one.stored[at] ^= 1
    assert not verified(one, sums).lost


def test_what_is_hurt_is_not_learnt() -> None:
    sums, one = Sums(), extent()
    one.stored[-1] ^= 1
    assert verified(one, sums).lost and not len(sums)
    assert verified(one, sums).lost


def test_what_was_found_whole_is_of_one_partition_and_of_its_offsets() -> None:
    sums = Sums()
    verified(extent(), sums)
    assert not sums.vouch(extent(index=1))
    assert not sums.vouch(extent()._replace(last_offset=COUNT))
    assert sums.vouch(extent())


def test_sums_are_few() -> None:
    sums = Sums(count_max=3)
    for index in range(10):
        verified(extent(index=index), sums)
    assert len(sums) == 3
    assert sums.vouch(extent(index=9)) and not sums.vouch(extent(index=6))
