"""Delegation tokens as the handlers of them see them: who may ask, and what removes those that expired."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.security.changing import carry_out
from penstock.metadata.commands import RemoveDelegationToken
from penstock.security.delegation import expired
from penstock.security.principals import ANONYMOUS
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Session

NO_TIME = -1


def no_time(code: ErrorCode) -> int:
    """The time of a token in an answer that refuses: in Kafka it tells apart who refused, the broker or the
    controller."""
    by_controller = (
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
        ErrorCode.DELEGATION_TOKEN_EXPIRED,
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
    )
    return 0 if code in by_controller else NO_TIME


USER_TYPE = "User"


def refusal_of(broker: Broker, session: Session) -> ErrorCode | None:
    """Why this connection may not ask for tokens: it is nobody's, or was let in by a token itself (who has a
    token could make it last for ever), or there are none."""
    if session.principal == ANONYMOUS or session.state.get("by_token"):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if not broker.settings.delegation_token_secret_key:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    return None


def split(principal: str) -> tuple[str, str]:
    """The kind and the name of a principal."""
    kind, _, name = principal.partition(":")
    return kind, name


class ExpiredTokens:
    """Removes tokens that expired, now and then. The broker that is shown as controller does it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task = asyncio.create_task(self._run(), name="expired delegation tokens")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        broker = self._broker
        while True:
            await asyncio.sleep(broker.settings.delegation_token_expiry_check_interval_ms / 1000)
            if broker.image.controller_id == broker.broker_id:
                await self.sweep()

    async def sweep(self) -> None:
        now_ms = self._broker.clock.time_ms()

        def decide(image: ClusterImage) -> list[RemoveDelegationToken]:
            return [
                RemoveDelegationToken(one.token_id) for one in image.tokens.values() if expired(one, now_ms)
            ]

        if decide(self._broker.image):
            await carry_out(self._broker, decide)
