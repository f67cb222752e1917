"""Request and response headers, against kio's and by hand."""

import pytest
from kio.schema.request_header.v1.header import RequestHeader as KioHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioHeader2

from penstock.wire import api
from penstock.wire.errors import WireError
from penstock.wire.headers import (
    FLEXIBLE_FROM,
    RequestHeader,
    parse_request_header,
    parse_response_header,
    request_header,
    response_header,
)
from penstock.wire.schema import NEVER_FLEXIBLE
from tests.wire.oracles import Kio


def test_the_table_of_flexible_versions_is_that_of_the_messages() -> None:
    for key in api.API_MODULES:
        assert FLEXIBLE_FROM.get(key, NEVER_FLEXIBLE) == api.request_class(key).flexible_from
        assert FLEXIBLE_FROM.get(key, NEVER_FLEXIBLE) == api.response_class(key).flexible_from


@pytest.mark.parametrize("client_id", [None, "", "client", "kółko"])
@pytest.mark.parametrize(("api_key", "version"), [(3, 8), (3, 9), (18, 3), (18, 77), (17, 1), (999, 3)])
def test_request_headers(api_key: int, version: int, client_id: str | None) -> None:
    data = request_header(api_key, version, 77, client_id)
    expected = RequestHeader(api_key, version, 77, client_id, len(data))
    assert parse_request_header(memoryview(data + b"body")) == expected
    oracle = Kio(KioHeader2 if version >= FLEXIBLE_FROM.get(api_key, NEVER_FLEXIBLE) else KioHeader1)
    theirs = oracle.decode(data)
    assert (theirs.request_api_key, theirs.request_api_version, theirs.correlation_id, theirs.client_id) == (
        api_key,
        version,
        77,
        client_id,
    )
    assert oracle.encode(theirs) == data


def test_unknown_tags_of_a_header_are_skipped() -> None:
    data = request_header(3, 9, 1, "c")[:-1] + b"\x02\x00\x01x\x05\x02yz"
    assert parse_request_header(memoryview(data + b"body")).body_at == len(data)


def test_controlled_shutdown_version_0_has_no_client_id() -> None:
    data = request_header(7, 0, 5, "ignored")
    assert data == b"\0\7\0\0\0\0\0\5"
    for body in (b"", b"\0", b"\0\0\0\1"):
        assert parse_request_header(memoryview(data + body)) == RequestHeader(7, 0, 5, None, 8)
    assert parse_request_header(memoryview(request_header(7, 1, 5, "c"))).client_id == "c"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(7),
        bytes(9),
        b"\0\3\0\1\0\0\0\1\0\5abcd",
        b"\0\3\0\1\0\0\0\1\x7f\xff",
        b"\0\3\0\x09\0\0\0\1\xff\xff",
        b"\0\3\0\x09\0\0\0\1\xff\xff\x01",
        b"\0\3\0\x09\0\0\0\1\xff\xff\x01\x00\x05abc",
        b"\0\3\0\x09\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ],
)
def test_bad_request_headers(data: bytes) -> None:
    with pytest.raises(WireError):
        parse_request_header(memoryview(data))


def test_a_client_id_may_be_any_bytes() -> None:
    header = parse_request_header(memoryview(b"\0\3\0\1\0\0\0\1\0\2\xff\xferest"))
    assert (header.client_id, header.body_at) == ("\ufffd\ufffd", 12)


@pytest.mark.parametrize(
    ("api_key", "version", "expected"),
    [
        (3, 8, b"\0\0\0\x09"),
        (3, 9, b"\0\0\0\x09\0"),
        (18, 2, b"\0\0\0\x09"),
        (18, 3, b"\0\0\0\x09"),
        (18, 4, b"\0\0\0\x09"),
        (17, 1, b"\0\0\0\x09"),
    ],
)
def test_response_headers(api_key: int, version: int, expected: bytes) -> None:
    assert response_header(api_key, version, 9) == expected
    assert parse_response_header(api_key, version, memoryview(expected + b"body")) == (9, len(expected))


def test_a_short_response_header() -> None:
    for data in (b"\0\0\0", b"\0\0\0\1"):
        with pytest.raises(WireError):
            parse_response_header(3, 9, memoryview(data))
