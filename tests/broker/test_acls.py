"""DescribeAcls, CreateAcls and DeleteAcls: what a Kafka without an authorizer says, to everything asked."""

from __future__ import annotations

import pytest

from penstock.wire.api.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.wire.api.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from penstock.wire.api.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig

DISABLED = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


@pytest.mark.parametrize("version", range(4))
async def test_no_rules_are_described(rig: Rig, version: int) -> None:
    message = DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1)
    answer = await rig.ask(message, DescribeAclsResponse, version)
    why = "No Authorizer is configured on the broker"
    assert (answer.error_code, answer.error_message) == (ErrorCode.SECURITY_DISABLED, why)
    assert answer.resources == []


@pytest.mark.parametrize("version", range(4))
async def test_each_rule_is_refused(rig: Rig, version: int) -> None:
    rules = [
        AclCreation(
            resource_type=2, resource_name=name, principal="User:a", host="*", operation=3, permission_type=3
        )
        for name in ("orders", "payments")
    ]
    answer = await rig.ask(CreateAclsRequest(creations=rules), CreateAclsResponse, version)
    assert [(result.error_code, result.error_message) for result in answer.results] == [DISABLED] * 2


@pytest.mark.parametrize("version", range(4))
async def test_each_filter_is_refused(rig: Rig, version: int) -> None:
    filters = [
        DeleteAclsFilter(resource_type_filter=kind, operation=1, permission_type=1) for kind in (2, 3, 4)
    ]
    answer = await rig.ask(DeleteAclsRequest(filters=filters), DeleteAclsResponse, version)
    found = [(result.error_code, result.error_message) for result in answer.filter_results]
    assert found == [DISABLED] * 3
    assert all(result.matching_acls == [] for result in answer.filter_results)
