"""Error codes and ids, by the names that Kafka gives them; and what importing the room costs."""

import subprocess
import sys

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from penstock.wire import checksum
from penstock.wire.errors import ErrorCode
from penstock.wire.uuids import uuid_bytes, uuid_text


def test_error_codes() -> None:
    assert {code.name: int(code) for code in ErrorCode} == {
        code.name.upper(): code.value for code in KioErrorCode
    }
    assert {code for code in ErrorCode if code.retriable} == {
        ErrorCode(code.value) for code in KioErrorCode if code.retriable
    }


@given(st.binary(min_size=16, max_size=16))
def test_ids_as_text(raw: bytes) -> None:
    text = uuid_text(raw)
    assert len(text) == 22
    assert not set("+/=") & set(text)
    assert uuid_bytes(text) == raw


def test_an_id_that_kafka_prints() -> None:
    assert uuid_text(bytes(16)) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert uuid_bytes("-_8AAAAAAAAAAAAAAAAAAA")[:2] == b"\xfb\xff"


@pytest.mark.parametrize(
    "text", ["", "short", "A" * 21, "A" * 23, "A" * 24, "ł" * 22, "!" * 22, "A" * 20 + "=="]
)
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ValueError, match="not an id"):
        uuid_bytes(text)


def test_crc32c_is_that_of_the_wheel() -> None:
    """The check value of the algorithm, and the wheel's own front door."""
    assert checksum.crc32c(b"123456789") == crc32c.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32c(memoryview(bytearray(1000))[10:500]) == crc32c.crc32c(bytes(490))


def test_imports_stay_lean() -> None:
    """What a broker imports at start brings nothing heavy with it, and no API that it was not asked for."""
    program = (
        "import sys, msgspec; before = set(sys.modules);"
        "import penstock.wire.codec, penstock.wire.headers, penstock.wire.exchange, penstock.wire.batch;"
        "import penstock.wire.api.metadata; print(*(set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = set(out.split())
    heavy = {
        "cramjam",
        "dataclasses",
        "inspect",
        "uuid",
        "asyncio",
        "logging",
        "email",
        "importlib.metadata",
        "zlib",
    }
    assert not heavy & loaded
    assert {name for name in loaded if name.startswith("penstock.wire.api.")} == {
        "penstock.wire.api.metadata"
    }
