"""From frame to answer: what is advertised is what is served, and what is not is refused as Kafka does."""

from __future__ import annotations

import struct
from importlib import import_module

import pytest

from penstock.broker.registry import APIS
from penstock.wire.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.codec import decode
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.headers import FLEXIBLE_FROM, request_header
from tests.broker.rig import Rig


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_lists_the_registry(rig: Rig, version: int) -> None:
    message = ApiVersionsRequest(client_software_name="a-client", client_software_version="1.2.3-rc1")
    if version < 3:
        message = ApiVersionsRequest()
    answer = await rig.ask(message, ApiVersionsResponse, version)
    assert answer.error_code == 0
    assert [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys] == [
        (row.key, row.min_version, row.max_version) for row in APIS.values()
    ]
    assert rig.session.client_software_name == ("a-client" if version >= 3 else "unknown")


@pytest.mark.parametrize("version", [5, 6, 99, 32767])
async def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest_form(
    rig: Rig, version: int
) -> None:
    frame = bytearray(request_header(18, version, 42, "future") + b"\x05what\x03ever\0")
    buffers = await rig.finished(rig.handle(memoryview(frame)))
    assert buffers is not None
    data = memoryview(b"".join(buffers))
    assert struct.unpack_from(">i", data)[0] == 42
    answer, end = decode(ApiVersionsResponse, 0, data, 4)
    assert end == len(data)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys] == [(18, 0, 4)]


@pytest.mark.parametrize("name", ["", "-dash", "dot.", "sp ace", "ümlaut", "x" * 10 + "\n"])
async def test_odd_software_names_are_refused(rig: Rig, name: str) -> None:
    message = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    answer = await rig.ask(message, ApiVersionsResponse, 3)
    assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, [])


async def test_unknown_apis_and_versions_close_the_connection(rig: Rig) -> None:
    frames = [(200, 0), (-1, 0), (7, 0), (32767, 1)]
    frames += [(row.key, row.max_version + 1) for row in APIS.values() if row.key != 18]
    frames += [(row.key, -1) for row in APIS.values() if row.key != 18]
    for key, version in frames:
        frame = request_header(key, version, 1, "odd") + bytes(50)
        answer = rig.handle(memoryview(bytearray(frame)))
        assert isinstance(answer, Reply), (key, version)
        assert answer.closed, (key, version)


async def test_frames_that_do_not_parse_close_the_connection(rig: Rig) -> None:
    for row in APIS.values():
        if row.key == 18:
            continue
        frame = request_header(row.key, row.max_version, 1, "odd") + b"\xff" * 5
        answer = rig.handle(memoryview(bytearray(frame)))
        assert isinstance(answer, Reply), row.name
        await rig.finished(answer)
        assert answer.closed, row.name


def test_every_row_has_a_handler_and_its_messages() -> None:
    for row in APIS.values():
        request, response = row.messages()
        assert request.api_key == response.api_key == row.key
        assert request.min_version <= row.min_version <= row.max_version <= request.max_version
        assert FLEXIBLE_FROM[row.key] == request.flexible_from if request.flexible_from < 100 else True
        assert callable(row.handler())
        contract = import_module(f"penstock.broker.handlers.{row.module}").__doc__
        assert contract
        assert row.name in contract.split("\n")[0], f"{row.module} opens with its contract"
    assert list(APIS) == sorted(APIS)
