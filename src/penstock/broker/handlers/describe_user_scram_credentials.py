"""DescribeUserScramCredentials 0: which users have which SCRAM mechanisms (KIP-554).

- Nobody has any: this broker keeps no credentials, and no request sets any. A user that is asked for by name
  is RESOURCE_NOT_FOUND, one that is asked for twice DUPLICATE_RESOURCE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.api.describe_user_scram_credentials import (
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
    times: dict[str, int] = {}
    for user in message.users or ():
        times[user.name] = times.get(user.name, 0) + 1
    return DescribeUserScramCredentialsResponse(
        results=[_nobody(name, count > 1) for name, count in times.items()]
    )


def _nobody(name: str, twice: bool) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=name,
        error_code=ErrorCode.DUPLICATE_RESOURCE if twice else ErrorCode.RESOURCE_NOT_FOUND,
        error_message=(TWICE if twice else NOT_FOUND) + name,
    )


def refused(
    message: DescribeUserScramCredentialsRequest, code: ErrorCode
) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(error_code=code, error_message=None)
