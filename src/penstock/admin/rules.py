"""Access rules (Kafka's ACLs): list, add and remove them, and say them in words."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.client import AnswerError, Client, ClientError
from penstock.metadata.access import AccessRule
from penstock.security.words import ALL_OPERATIONS, ANY, Operation, Pattern, Permission, Resource
from penstock.wire.api.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.wire.api.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from penstock.wire.api.describe_acls import DescribeAclsRequest, DescribeAclsResponse

OPERATIONS = {"all": ALL_OPERATIONS, **{one.name.lower().replace("_", "-"): int(one) for one in Operation}}
_OPERATION_NAMES = {number: name for name, number in OPERATIONS.items()}


def list_rules(client: Client) -> list[AccessRule]:
    request = DescribeAclsRequest(ANY, None, Pattern.ANY, None, None, ANY, ANY)
    answer = client.any().ask(request, DescribeAclsResponse)
    if answer.error_code:
        raise AnswerError(answer.error_code, "Listing rules", answer.error_message)
    return [
        AccessRule(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for resource in answer.resources
        for one in resource.acls
    ]


def add_rules(client: Client, rules: Sequence[AccessRule]) -> None:
    creations = [AclCreation(*msgspec.structs.astuple(rule)) for rule in rules]
    answer = client.controller().ask(CreateAclsRequest(creations=creations), CreateAclsResponse)
    for result in answer.results:
        if result.error_code:
            raise AnswerError(result.error_code, "Adding a rule", result.error_message)


def remove_rules(client: Client, rules: Sequence[AccessRule]) -> None:
    filters = [DeleteAclsFilter(*msgspec.structs.astuple(rule)) for rule in rules]
    answer = client.controller().ask(DeleteAclsRequest(filters=filters), DeleteAclsResponse)
    for result in answer.filter_results:
        if result.error_code:
            raise AnswerError(result.error_code, "Removing a rule", result.error_message)


def require_principal(text: str) -> None:
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ClientError(f"{text!r} is not a principal such as User:alice.")


def in_words(rule: AccessRule) -> dict[str, str]:
    return {
        "principal": rule.principal,
        "permission": Permission(rule.permission).name.lower(),
        "operation": _OPERATION_NAMES.get(rule.operation, str(rule.operation)),
        "resource": Resource(rule.resource_type).name.lower().replace("_", "-"),
        "name": rule.name,
        "pattern": Pattern(rule.pattern_type).name.lower(),
        "host": rule.host,
    }
