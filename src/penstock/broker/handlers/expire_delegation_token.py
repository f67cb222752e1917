"""ExpireDelegationToken 1-2: let a token live less long, or end it (KIP-48).

- A negative period ends it at once. Otherwise it expires then, never beyond the time that was fixed when it
  was made. Connections that it opened end with it.
- Its owner and its renewers may. Codes are those of RenewDelegationToken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.audit import literal
from penstock.broker.security.changing import carry_out, tell
from penstock.broker.security.tokens import NO_TIME, no_time, refusal_of
from penstock.metadata.commands import RemoveDelegationToken, SetDelegationToken
from penstock.metadata.refusal import Refusal
from penstock.security.delegation import after, expired, may_renew
from penstock.wire.api.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    refusal = refusal_of(broker, request.session)
    if refusal is not None:
        return refused(message, refusal)
    now_ms = broker.clock.time_ms()
    ended = ("", NO_TIME)

    def decide(
        image: ClusterImage,
    ) -> Sequence[SetDelegationToken | RemoveDelegationToken] | Refusal:
        nonlocal ended
        token = broker.services.tokens_by_hmac.find(image.tokens, bytes(message.hmac))
        if token is None:
            return Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "")
        if not may_renew(token, request.session.principal):
            return Refusal(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "")
        if message.expiry_time_period_ms < 0:
            ended = (token.token_id, now_ms)
            return [RemoveDelegationToken(token.token_id)]
        if expired(token, now_ms):
            return Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED, "")
        expires_ms = min(token.expires_last_ms, after(now_ms, message.expiry_time_period_ms))
        ended = (token.token_id, expires_ms)
        return [SetDelegationToken(msgspec.structs.replace(token, expires_ms=expires_ms), token.expires_ms)]

    why = await carry_out(broker, decide)
    if why is not None:
        return refused(message, why.code)
    tell(broker, request, [f"expired a token: id={literal(ended[0])} at_ms={ended[1]}"])
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=ended[1])


def refused(message: ExpireDelegationTokenRequest, code: ErrorCode) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=no_time(code))
