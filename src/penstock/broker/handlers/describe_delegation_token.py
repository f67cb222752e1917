"""DescribeDelegationToken 1-3: list tokens (KIP-48, KIP-373).

- Null owners ask for all, no owners for none. A token is shown to its owner and its renewers, and to who may
  describe it or its owner's tokens. To others it is hidden.
- With a token goes its HMAC, as in Kafka: who is shown a token can use it.
- Where nobody may ask, as CreateDelegationToken says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import DESCRIBE_TOKEN, DESCRIBE_TOKENS_OF
from penstock.broker.security.tokens import refusal_of, split
from penstock.security.delegation import concerns, may_renew, token_hmac
from penstock.wire.api.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.metadata.access import DelegationToken
    from penstock.wire.exchange import Request


def handle(
    broker: Broker, request: Request, message: DescribeDelegationTokenRequest, permit: Permit
) -> DescribeDelegationTokenResponse:
    refusal = refusal_of(broker, request.session)
    if refusal is not None:
        return refused(message, refusal)
    owners = None
    if message.owners is not None:
        owners = {f"{one.principal_type}:{one.principal_name}" for one in message.owners}
    secret = broker.settings.delegation_token_secret_key or ""
    principal = request.session.principal
    return DescribeDelegationTokenResponse(
        tokens=[
            _described(token, secret)
            for token in broker.image.tokens.values()
            if (owners is None or concerns(token, owners)) and _visible(token, principal, permit)
        ]
    )


def _visible(token: DelegationToken, principal: str, permit: Permit) -> bool:
    return (
        may_renew(token, principal)
        or permit.sees(DESCRIBE_TOKEN, token.token_id)
        or permit.sees(DESCRIBE_TOKENS_OF, token.owner)
    )


def _described(token: DelegationToken, secret: str) -> DescribedDelegationToken:
    (kind, name), (requester_kind, requester_name) = split(token.owner), split(token.requester)
    return DescribedDelegationToken(
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=requester_kind,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.expires_last_ms,
        token_id=token.token_id,
        hmac=token_hmac(token.token_id, secret),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, name in map(split, token.renewers)
        ],
    )


def refused(message: DescribeDelegationTokenRequest, code: ErrorCode) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=code)
