"""SaslHandshake 0-1: choose a SASL mechanism (KIP-43, KIP-152).

- No listener asks for SASL, so a client that begins an exchange is told ILLEGAL_SASL_STATE and that there are
  no mechanisms, as by Kafka on such a listener. Clients name that error at once; where the API is missing,
  Java's try again until their time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request


def handle(broker: Broker, request: Request, message: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return refused(message, ErrorCode.ILLEGAL_SASL_STATE)


def refused(message: SaslHandshakeRequest, code: ErrorCode) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=code, mechanisms=[])
