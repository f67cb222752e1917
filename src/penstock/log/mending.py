"""Finding the one byte whose change explains a wrong CRC32C.

A CRC is linear: what a changed byte does to it depends on the change and on how many bytes follow, on nothing
else. So the difference between the checksum that is stored and the one that is computed is run backwards,
byte by byte, to where it fits into a single one. Of damage that is spread wider, one case in many is taken
for a byte all the same; who mends checks the result by something else that it must agree with.
"""

from functools import cache

from penstock.wire.checksum import crc32c

_POLYNOMIAL = 0x82F63B78
_BYTES_OF_CRC = (0xFF, 0xFF00, 0xFF0000, 0xFF000000)
_BYTES_MAX = 1 << 20
"""Some tenths of a second; larger pieces are not mended."""


@cache
def _tables() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The effect of each byte on the register, and which byte has a given effect on its upper eight bits."""
    forward = []
    for byte in range(256):
        register = byte
        for _ in range(8):
            register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
        forward.append(register)
    backward = [0] * 256
    for byte, register in enumerate(forward):
        backward[register >> 24] = byte
    return tuple(forward), tuple(backward)


def mended(data: bytes, crc: int) -> bytes | None:
    """`data` as it must have been if at most one byte was changed, of it or of `crc`; None if it is more."""
    if len(data) > _BYTES_MAX:
        return None
    register = crc32c(data) ^ crc
    if not register or any(register & mask == register for mask in _BYTES_OF_CRC):
        return data
    forward, backward = _tables()
    for at in range(len(data) - 1, -1, -1):
        byte = backward[register >> 24]
        register = ((register ^ forward[byte]) << 8 & 0xFFFFFFFF) | byte
        if register < 256:
            return data[:at] + bytes((data[at] ^ register,)) + data[at + 1 :]
    return None
