"""RenewDelegationToken 1-2: let a token live longer (KIP-48).

- Its owner and its renewers may (else DELEGATION_TOKEN_OWNER_MISMATCH), never beyond the time that was fixed
  when it was made.
- DELEGATION_TOKEN_NOT_FOUND for an HMAC that is no token's, DELEGATION_TOKEN_EXPIRED for one that is over;
  where nobody may ask, as CreateDelegationToken says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.audit import literal
from penstock.broker.security.changing import carry_out, tell
from penstock.broker.security.tokens import NO_TIME, no_time, refusal_of
from penstock.metadata.commands import SetDelegationToken
from penstock.metadata.refusal import Refusal
from penstock.security.delegation import after, expired, may_renew
from penstock.wire.api.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    refusal = refusal_of(broker, request.session)
    if refusal is not None:
        return refused(message, refusal)
    settings, now_ms = broker.settings, broker.clock.time_ms()
    period = settings.delegation_token_expiry_time_ms
    if message.renew_period_ms > 0:
        period = min(period, message.renew_period_ms)
    renewed = ("", NO_TIME)

    def decide(image: ClusterImage) -> Sequence[SetDelegationToken] | Refusal:
        nonlocal renewed
        token = broker.services.tokens_by_hmac.find(image.tokens, bytes(message.hmac))
        if token is None:
            return Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "")
        if expired(token, now_ms):
            return Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED, "")
        if not may_renew(token, request.session.principal):
            return Refusal(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "")
        expires_ms = min(token.expires_last_ms, after(now_ms, period))
        renewed = (token.token_id, expires_ms)
        return [SetDelegationToken(msgspec.structs.replace(token, expires_ms=expires_ms), token.expires_ms)]

    why = await carry_out(broker, decide)
    if why is not None:
        return refused(message, why.code)
    tell(broker, request, [f"renewed a token: id={literal(renewed[0])}"])
    return RenewDelegationTokenResponse(expiry_timestamp_ms=renewed[1])


def refused(message: RenewDelegationTokenRequest, code: ErrorCode) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=no_time(code))
