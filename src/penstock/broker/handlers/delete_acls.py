"""DeleteAcls 0-3: remove the access rules that match filters (KIP-140, KIP-290).

- Each filter is answered with the rules that it matched; a rule that several matched is in each answer. A
  filter with a word that is none is INVALID_REQUEST, and the others hold.
- What is removed is decided and removed by one entry of the metadata log, so it is what the answer says.
- Without `authorizer.class.name` each is refused with SECURITY_DISABLED, as by Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.acl import NO_AUTHORIZER
from penstock.broker.security.changing import carry_out, tell
from penstock.broker.security.rules import RULES_PER_REQUEST_MAX, has_authorizer, rule_filter, shown
from penstock.metadata.commands import RemoveAcls
from penstock.metadata.refusal import Refusal
from penstock.security.filters import RuleSearch
from penstock.wire.api.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.context import Broker
    from penstock.metadata.access import AccessRule
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request


async def handle(broker: Broker, request: Request, message: DeleteAclsRequest) -> DeleteAclsResponse:
    if not has_authorizer(broker):
        return refused(message, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    filters = [rule_filter(one, request.api_version) for one in message.filters]
    matched: list[list[AccessRule] | None] = []
    gone: tuple[AccessRule, ...] = ()

    def decide(image: ClusterImage) -> Sequence[RemoveAcls] | Refusal:
        nonlocal matched, gone
        search = RuleSearch(image.access_rules)
        found = {wanted: search.matching(wanted) for wanted in dict.fromkeys(filters) if wanted.is_known}
        matched = [found.get(wanted) for wanted in filters]
        gone = tuple(dict.fromkeys(rule for rules in found.values() for rule in rules))
        if len(gone) > RULES_PER_REQUEST_MAX:
            why = f"Cannot remove more than {RULES_PER_REQUEST_MAX} acls in a single delete operation."
            return Refusal(ErrorCode.POLICY_VIOLATION, why)
        return [RemoveAcls(gone)] if gone else []

    refusal = await carry_out(broker, decide)
    if refusal is not None:
        return refused(message, refusal.code, refusal.message)
    tell(broker, request, (f"removed the rule: {shown(rule)}" for rule in gone))
    return DeleteAclsResponse(filter_results=[_result(found) for found in matched])


def _result(found: list[AccessRule] | None) -> DeleteAclsFilterResult:
    if found is None:
        return DeleteAclsFilterResult(
            error_code=ErrorCode.INVALID_REQUEST, error_message="The filter has unknown elements."
        )
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=rule.resource_type,
                resource_name=rule.name,
                pattern_type=rule.pattern_type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
            for rule in found
        ],
    )


def refused(message: DeleteAclsRequest, code: ErrorCode, why: str | None = None) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=code, error_message=why or code.name) for _ in message.filters
        ]
    )
