"""DeleteAcls 0-3: remove the access rules that match filters (KIP-140, KIP-290).

- This broker keeps no access rules: each filter is refused with SECURITY_DISABLED, as by Kafka where no
  authorizer is configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.acl import NO_AUTHORIZER
from penstock.wire.api.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request


def handle(broker: Broker, request: Request, message: DeleteAclsRequest) -> DeleteAclsResponse:
    return refused(message, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


def refused(message: DeleteAclsRequest, code: ErrorCode, why: str | None = None) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[DeleteAclsFilterResult(error_code=code, error_message=why) for _ in message.filters]
    )
