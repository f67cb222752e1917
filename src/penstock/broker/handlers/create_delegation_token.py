"""CreateDelegationToken 1-3: make a token that speaks for its owner (KIP-48, KIP-373).

- The owner is who asks, or from version 3 on another, for whom it needs the right to create tokens
  (DELEGATION_TOKEN_AUTHORIZATION_FAILED).
- DELEGATION_TOKEN_REQUEST_NOT_ALLOWED on a connection that is nobody's or that a token opened,
  DELEGATION_TOKEN_AUTH_DISABLED without `delegation.token.secret.key`, INVALID_PRINCIPAL_TYPE for renewers
  that are not users.
- The token's password, its HMAC, is in this answer. It is kept nowhere.
- Who may log in may make tokens, and each is in the memory of every broker. So one has so many renewers at
  most, with so many characters (INVALID_REQUEST), and who asks has so many tokens (POLICY_VIOLATION). Kafka
  has no limit.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

from penstock.audit import literal
from penstock.broker.rights import CREATE_TOKENS_FOR
from penstock.broker.security.changing import carry_out, tell
from penstock.broker.security.tokens import USER_TYPE, no_time, refusal_of, split
from penstock.metadata.access import DelegationToken
from penstock.metadata.commands import SetDelegationToken
from penstock.metadata.refusal import Refusal
from penstock.security.delegation import after, token_hmac
from penstock.wire.api.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

RENEWERS_MAX = 100
RENEWERS_CHARACTERS_MAX = 8_192
"""Of all their names together: a hundred distinguished names."""
TOKENS_OF_REQUESTER_MAX = 10_000
"""A tenth of what a cluster keeps. A scheduler takes one for each job, and they live for a week."""


async def handle(
    broker: Broker, request: Request, message: CreateDelegationTokenRequest, permit: Permit
) -> CreateDelegationTokenResponse:
    session, settings = request.session, broker.settings
    owner = session.principal
    if message.owner_principal_name:
        owner = f"{message.owner_principal_type}:{message.owner_principal_name}"
    refusal = refusal_of(broker, session)
    if refusal is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED:
        return _refused(owner, session.principal, refusal)
    if owner != session.principal and not permit.allows(CREATE_TOKENS_FOR, owner):
        return _refused(owner, session.principal, CREATE_TOKENS_FOR.code)
    if any(renewer.principal_type != USER_TYPE for renewer in message.renewers):
        return _refused(owner, session.principal, ErrorCode.INVALID_PRINCIPAL_TYPE)
    if refusal is not None or _too_many(message):
        return _refused(owner, session.principal, refusal or ErrorCode.INVALID_REQUEST)
    secret = settings.delegation_token_secret_key
    assert secret
    now_ms = broker.clock.time_ms()
    longest = settings.delegation_token_max_lifetime_ms
    if message.max_lifetime_ms > 0:
        longest = min(longest, message.max_lifetime_ms)
    last_ms = after(now_ms, longest)
    token = DelegationToken(
        token_id=urlsafe_b64encode(broker.entropy.token(16)).rstrip(b"=").decode(),
        owner=owner,
        requester=session.principal,
        renewers=tuple(f"{one.principal_type}:{one.principal_name}" for one in message.renewers),
        issued_ms=now_ms,
        expires_ms=min(last_ms, after(now_ms, settings.delegation_token_expiry_time_ms)),
        expires_last_ms=last_ms,
    )

    def decide(image: ClusterImage) -> Sequence[SetDelegationToken] | Refusal:
        made = sum(one.requester == token.requester for one in image.tokens.values())
        if made >= TOKENS_OF_REQUESTER_MAX:
            why = f"{token.requester} has {made} tokens already."
            return Refusal(ErrorCode.POLICY_VIOLATION, why)
        return [SetDelegationToken(token)]

    refused_why = await carry_out(broker, decide)
    if refused_why is not None:
        return _refused(owner, session.principal, refused_why.code)
    tell(broker, request, [f"created a token: id={literal(token.token_id)} owner={literal(owner)}"])
    answer = _refused(owner, session.principal, ErrorCode.NONE)
    answer.issue_timestamp_ms = now_ms
    answer.expiry_timestamp_ms = token.expires_ms
    answer.max_timestamp_ms = token.expires_last_ms
    answer.token_id = token.token_id
    answer.hmac = token_hmac(token.token_id, secret)
    return answer


def _too_many(message: CreateDelegationTokenRequest) -> bool:
    renewers = message.renewers
    return (
        len(renewers) > RENEWERS_MAX
        or sum(len(one.principal_name) for one in renewers) > RENEWERS_CHARACTERS_MAX
    )


def _refused(owner: str, requester: str, code: ErrorCode) -> CreateDelegationTokenResponse:
    (kind, name), (requester_kind, requester_name) = split(owner), split(requester)
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=requester_kind,
        token_requester_principal_name=requester_name,
        issue_timestamp_ms=no_time(code),
        expiry_timestamp_ms=no_time(code),
        max_timestamp_ms=no_time(code),
    )
