"""Frames that are wrong before any API is reached; under ApiVersions, which every client asks first."""

import struct
from collections.abc import Iterator

from conformance.differential.scenario import Draw, Step, scenario

CLIENT = struct.pack(">h", 4) + b"test"


def frame(api_key: int, version: int, rest: bytes, client: bytes = CLIENT) -> bytes:
    return struct.pack(">hhi", api_key, version, 7) + client + rest


@scenario("ApiVersions")
def frame_unknown_version(draw: Draw, version: int) -> Iterator[Step]:
    """The one API whose unsupported versions are answered, in the form of version 0."""
    if version == 0:
        for asked in (5, 99, 32767, -1):
            yield Step(
                {}, frame=frame(18, asked, b"\0"), note=f"ApiVersions {asked}"
            )  # answered as version 0


@scenario("ApiVersions")
def frame_wrong(draw: Draw, version: int) -> Iterator[Step]:
    if version != 0:
        return
    for note, data in (
        ("no such api", frame(999, 0, b"")),
        ("negative api", frame(-1, 0, b"")),
        ("produce 99", frame(0, 99, b"")),
        ("metadata 99", frame(3, 99, b"")),
        ("metadata -1", frame(3, -1, b"\0\0\0\0")),
        ("cut body", frame(3, 1, b"\0\0")),
        ("huge count", frame(3, 1, b"\x7f\xff\xff\xff")),
        ("negative count", frame(3, 1, b"\xff\xff\xff\xf0")),
        ("huge string", frame(3, 1, b"\0\0\0\1\x7f\xff")),
        ("cut header", b"\0\x03\0"),
        ("client id too long", frame(3, 1, b"", client=b"\x7f\xff")),
        ("bad text in client id", frame(3, 1, b"\0\0\0\0", client=b"\0\2\xff\xfe")),
        ("varint that does not end", frame(3, 9, b"\0" + b"\xff" * 12)),
    ):
        yield Step({}, api="Metadata", version=1, frame=data, note=note)


@scenario("ApiVersions")
def frame_left_over(draw: Draw, version: int) -> Iterator[Step]:
    if version == 0:
        data = frame(3, 1, b"\0\0\0\0" + b"more")
        yield Step({}, api="Metadata", version=1, frame=data, note="bytes after the request")
