"""A flipped bit or a changed byte is found, wherever it is; other damage is not taken for one."""

import random
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.checksum import crc32c
from penstock.wire.correction import CORRECTED_BYTES_MAX, MENDED_BYTES_MAX, corrections, mended


@given(st.binary(min_size=1, max_size=300), st.data(), st.booleans())
def test_a_flipped_bit_is_flipped_back(body: bytes, data: st.DataObject, little: bool) -> None:
    order: Literal["little", "big"] = "little" if little else "big"
    whole = b"magic" + body + crc32c(body).to_bytes(4, order)
    hurt = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    hurt[at] ^= 1 << data.draw(st.integers(0, 7))
    end = len(whole) - 4
    found = [bytes(one) for one in corrections(hurt, 5, end, end, order)]
    assert whole in found
    if at >= 5:
        assert len(found) == 1


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_changed_byte_is_changed_back(body: bytes, data: st.DataObject) -> None:
    hurt = bytearray(body + crc32c(body).to_bytes(4, "big"))
    hurt[data.draw(st.integers(0, len(hurt) - 1))] ^= data.draw(st.integers(1, 255))
    assert mended(bytes(hurt[:-4]), int.from_bytes(hurt[-4:], "big")) == body


def test_other_damage_is_left_alone() -> None:
    numbers = random.Random(1)
    for _ in range(200):
        body = bytearray(numbers.randbytes(2000))
        checksum = crc32c(body)
        at = numbers.randrange(1900)
        body[at : at + 64] = numbers.randbytes(64)
        stored = bytes(body) + checksum.to_bytes(4, "big")
        assert list(corrections(stored, 0, 2000, 2000)) == []
        assert mended(bytes(body), checksum) is None


def test_what_is_too_long_to_be_sure() -> None:
    body = bytearray(CORRECTED_BYTES_MAX)
    stored = body + crc32c(body).to_bytes(4, "big")
    stored[7] ^= 1
    assert list(corrections(stored, 0, len(body), len(body))) == []
    body = bytearray(MENDED_BYTES_MAX + 1)
    assert mended(bytes(body), crc32c(body) ^ 0x12345678) is None
