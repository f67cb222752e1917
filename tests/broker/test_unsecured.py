"""SASL, quotas and SCRAM credentials on a broker that has none: one clear answer, at every version."""

from __future__ import annotations

import pytest

from penstock.wire.api.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from penstock.wire.api.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from penstock.wire.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig

EXACT, DEFAULT, SPECIFIED = 0, 1, 2


@pytest.mark.parametrize("version", [0, 1])
async def test_whoever_begins_sasl_is_told_at_once(rig: Rig, version: int) -> None:
    answer = await rig.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, version)
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_no_exchange_goes_on(rig: Rig, version: int) -> None:
    message = SaslAuthenticateRequest(auth_bytes=b"\0user\0password")
    answer = await rig.ask(message, SaslAuthenticateResponse, version)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert answer.error_message


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], ErrorCode.NONE),
        ([("user", EXACT, "somebody"), ("client-id", DEFAULT, None)], ErrorCode.NONE),
        ([("ip", SPECIFIED, None)], ErrorCode.NONE),
        ([("ip", SPECIFIED, None), ("user", SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
        ([("user", SPECIFIED, None), ("user", DEFAULT, None)], ErrorCode.INVALID_REQUEST),
        ([("", SPECIFIED, None)], ErrorCode.INVALID_REQUEST),
        ([("planet", SPECIFIED, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "somebody")], ErrorCode.INVALID_REQUEST),
        ([("user", 9, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_there_are_no_quotas(
    rig: Rig, version: int, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    asked = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    message = DescribeClientQuotasRequest(components=asked)
    answer = await rig.ask(message, DescribeClientQuotasResponse, version)
    assert (answer.error_code, answer.entries) == (code, None if code else [])
    assert bool(answer.error_message) == bool(code)


async def test_nobody_has_credentials(rig: Rig) -> None:
    everybody = DescribeUserScramCredentialsRequest(users=None)
    nobody = await rig.ask(everybody, DescribeUserScramCredentialsResponse, 0)
    assert (nobody.error_code, nobody.results) == (ErrorCode.NONE, [])
    users = [UserName(name=name) for name in ("a", "b", "a")]
    named = DescribeUserScramCredentialsRequest(users=users)
    answer = await rig.ask(named, DescribeUserScramCredentialsResponse, 0)
    assert {result.user: result.error_code for result in answer.results} == {
        "a": ErrorCode.DUPLICATE_RESOURCE,
        "b": ErrorCode.RESOURCE_NOT_FOUND,
    }
