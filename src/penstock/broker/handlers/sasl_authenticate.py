"""SaslAuthenticate 0-2: one step of a SASL exchange (KIP-152, KIP-368).

- No listener asks for SASL: ILLEGAL_SASL_STATE, in Kafka's words for such a listener.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request

NOT_EXPECTED = "SaslAuthenticate request received after successful authentication"


def handle(broker: Broker, request: Request, message: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    return refused(message, ErrorCode.ILLEGAL_SASL_STATE, NOT_EXPECTED)


def refused(
    message: SaslAuthenticateRequest, code: ErrorCode, why: str | None = None
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=why)
