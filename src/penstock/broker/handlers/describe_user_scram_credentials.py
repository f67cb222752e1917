"""DescribeUserScramCredentials 0: which users have which SCRAM mechanisms (KIP-554).

- Mechanisms and iterations alone are told: no salt, no key.
- No users, or null, asks for all. A user that is not there is RESOURCE_NOT_FOUND, one that is asked for twice
  DUPLICATE_RESOURCE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.api.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request

NOT_FOUND = "Attempt to describe a user credential that does not exist: "
TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "


def handle(
    broker: Broker, request: Request, message: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    known: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), credential in sorted(broker.image.credentials.items(), key=lambda item: item[0]):
        info = CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        known.setdefault(user, []).append(info)
    times: dict[str, int] = {}
    for name in [user.name for user in message.users] if message.users else known:
        times[name] = times.get(name, 0) + 1
    return DescribeUserScramCredentialsResponse(
        error_message="",  # As Kafka says it.
        results=[_result(name, known.get(name), count > 1) for name, count in times.items()],
    )


def _result(name: str, found: list[CredentialInfo] | None, twice: bool) -> DescribeUserScramCredentialsResult:
    if found is not None and not twice:
        return DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=found)
    return DescribeUserScramCredentialsResult(
        user=name,
        error_code=ErrorCode.DUPLICATE_RESOURCE if twice else ErrorCode.RESOURCE_NOT_FOUND,
        error_message=(TWICE if twice else NOT_FOUND) + name,
    )


def refused(
    message: DescribeUserScramCredentialsRequest, code: ErrorCode
) -> DescribeUserScramCredentialsResponse:
    # As Kafka refuses it: one for each user, without the names.
    results = [
        DescribeUserScramCredentialsResult(error_code=code, error_message=None) for _ in message.users or ()
    ]
    return DescribeUserScramCredentialsResponse(error_code=code, error_message=None, results=results)
