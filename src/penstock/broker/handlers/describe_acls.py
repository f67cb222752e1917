"""DescribeAcls 0-3: the access rules that match a filter (KIP-140, KIP-290).

- This broker keeps no access rules, so the answer is SECURITY_DISABLED, Kafka's answer where no authorizer is
  configured. Tools know that code (MirrorMaker copies no rules then); for an API that is missing they fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.acl import NO_AUTHORIZER_ON_BROKER
from penstock.wire.api.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request


def handle(broker: Broker, request: Request, message: DescribeAclsRequest) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER_ON_BROKER)


def refused(message: DescribeAclsRequest, code: ErrorCode) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=code, error_message=None)
