"""DescribeAcls 0-3: the access rules that match a filter (KIP-140, KIP-290).

- Rules are grouped by resource. A filter with a word that is none is INVALID_REQUEST.
- Without `authorizer.class.name` the answer is SECURITY_DISABLED, as Kafka's. Tools know that code
  (MirrorMaker copies no rules then); for an API that is missing they fail.
- Rules with a prefix are left out of version 0, which cannot say that they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.acl import NO_AUTHORIZER_ON_BROKER
from penstock.broker.security.rules import has_authorizer, rule_filter
from penstock.wire.api.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request


def handle(broker: Broker, request: Request, message: DescribeAclsRequest) -> DescribeAclsResponse:
    if not has_authorizer(broker):
        return refused(message, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER_ON_BROKER)
    wanted = rule_filter(message, request.api_version)
    if not wanted.is_known:
        return refused(message, ErrorCode.INVALID_REQUEST, "The filter has unknown elements.")
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for rule in broker.image.access_rules:
        if not wanted.matches(rule):
            continue
        resource = resources.setdefault(
            (rule.resource_type, rule.name, rule.pattern_type),
            DescribeAclsResource(
                resource_type=rule.resource_type,
                resource_name=rule.name,
                pattern_type=rule.pattern_type,
                acls=[],
            ),
        )
        resource.acls.append(
            AclDescription(
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
        )
    return DescribeAclsResponse(error_message="", resources=list(resources.values()))


def refused(message: DescribeAclsRequest, code: ErrorCode, why: str | None = None) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=code, error_message=why or code.name)
