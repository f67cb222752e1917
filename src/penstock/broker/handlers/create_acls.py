"""CreateAcls 0-3: add access rules (KIP-140, KIP-290).

- Rules are kept in the metadata log, so all brokers decide by them. One that is there already is no error.
- INVALID_REQUEST for a rule with an empty name, a name of the cluster that is not `kafka-cluster`, a word
  that is none, or a principal without its kind (`User:`). The others of the request hold.
- Without `authorizer.class.name` each is refused with SECURITY_DISABLED: nobody is told that a rule holds
  which nobody enforces.
- All rules of a request become one entry of the log; the audit is told of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.acl import CLUSTER_NAME, NO_AUTHORIZER, Operation, Resource
from penstock.broker.security.changing import carry_out, tell
from penstock.broker.security.rules import RULES_PER_REQUEST_MAX, has_authorizer, shown
from penstock.metadata.access import AccessRule
from penstock.metadata.commands import SetAcls
from penstock.security.words import ALL_OPERATIONS, Pattern, Permission
from penstock.wire.api.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request


async def handle(broker: Broker, request: Request, message: CreateAclsRequest) -> CreateAclsResponse:
    if not has_authorizer(broker):
        return refused(message, ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
    if len(message.creations) > RULES_PER_REQUEST_MAX:
        why = f"A request creates at most {RULES_PER_REQUEST_MAX} rules."
        return refused(message, ErrorCode.POLICY_VIOLATION, why)
    faults = [_fault(creation, request.api_version) for creation in message.creations]
    rules = [
        _rule(creation) for creation, fault in zip(message.creations, faults, strict=True) if fault is None
    ]
    new: tuple[AccessRule, ...] = ()

    def decide(image: ClusterImage) -> Sequence[SetAcls]:
        nonlocal new
        new = tuple(dict.fromkeys(rule for rule in rules if rule not in image.access_rules))
        return [SetAcls(new)] if new else []

    refusal = await carry_out(broker, decide)
    if refusal is None:
        tell(broker, request, (f"added the rule: {shown(rule)}" for rule in new))
    return CreateAclsResponse(
        results=[
            _result(ErrorCode.INVALID_REQUEST, fault)
            if fault is not None
            else (_result() if refusal is None else _result(refusal.code, refusal.message))
            for fault in faults
        ]
    )


def _result(code: ErrorCode = ErrorCode.NONE, why: str | None = "") -> AclCreationResult:
    return AclCreationResult(error_code=code, error_message=why)


def _rule(creation: AclCreation) -> AccessRule:
    return AccessRule(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _fault(creation: AclCreation, version: int) -> str | None:
    """Why this can be no rule."""
    if creation.resource_type == Resource.CLUSTER and creation.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not creation.resource_name:
        return "Invalid empty resource name"
    if creation.resource_type not in tuple(Resource):
        return "Invalid resourceType"
    if creation.resource_pattern_type not in (Pattern.LITERAL, Pattern.PREFIXED):
        return "Invalid patternType"
    if creation.operation not in (ALL_OPERATIONS, *Operation):
        return "Invalid operation"
    if creation.permission_type not in tuple(Permission):
        return "Invalid permissionType"
    kind, colon, _name = creation.principal.partition(":")
    if not kind or not colon:
        return (
            f"Could not parse principal from `{creation.principal}` (no colon is present separating the "
            "principal type from the principal name)"
        )
    return None


def refused(message: CreateAclsRequest, code: ErrorCode, why: str | None = None) -> CreateAclsResponse:
    return CreateAclsResponse(results=[_result(code, why or code.name) for _ in message.creations])
