"""AlterConfigs 0-2: replace all settings of topics, brokers and groups (KIP-133).

- The resource then has the settings that are named and no others. IncrementalAlterConfigs is the better
  way: two clients that use this one at the same time undo each other's work.
- Resources and refusals are those of IncrementalAlterConfigs; loggers are not among them (INVALID_REQUEST).
- `validate_only` checks and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.configs.changes import Change, Wish, change_configs
from penstock.metadata.config_changes import Operation
from penstock.metadata.refusal import Refusal
from penstock.wire.api.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: AlterConfigsRequest, permit: Permit
) -> AlterConfigsResponse:
    wishes = [
        Wish(
            resource.resource_type,
            resource.resource_name,
            [Change(config.name, Operation.SET, config.value) for config in resource.configs],
            replacing=True,
        )
        for resource in message.resources
    ]
    outcomes = await change_configs(broker, permit, wishes, validate_only=message.validate_only)
    return AlterConfigsResponse(
        responses=[
            _response(resource, refusal)
            for resource, refusal in zip(message.resources, outcomes, strict=True)
        ]
    )


def refused(message: AlterConfigsRequest, code: ErrorCode) -> AlterConfigsResponse:
    refusal = Refusal(code, "")
    return AlterConfigsResponse(responses=[_response(resource, refusal) for resource in message.resources])


def _response(resource: AlterConfigsResource, refusal: Refusal | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.message or None,
    )
