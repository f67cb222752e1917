"""CreateAcls 0-3: add access rules (KIP-140, KIP-290).

- This broker keeps no access rules: each is refused with SECURITY_DISABLED, as by Kafka where no authorizer
  is configured. Nobody is told that a rule holds which nobody enforces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.acl import NO_AUTHORIZER
from penstock.wire.api.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request


def handle(broker: Broker, request: Request, message: CreateAclsRequest) -> CreateAclsResponse:
    return refused(message, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def refused(message: CreateAclsRequest, code: ErrorCode, why: str | None = None) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=code, error_message=why) for _ in message.creations]
    )
