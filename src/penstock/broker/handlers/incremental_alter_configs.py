"""IncrementalAlterConfigs 0-1: change single settings of topics, brokers, groups and loggers (KIP-339).

- Per setting SET, DELETE (back to the default), or for lists APPEND and SUBTRACT. A resource whose changes
  are not all possible keeps all its settings.
- Resources: topics; this broker by its number, or all brokers by the empty name; groups; the loggers of
  this broker. Client metrics are refused.
- Refused: a resource that is named twice, a setting that is named twice, a null value (INVALID_REQUEST);
  unknown settings and bad values (INVALID_CONFIG, for brokers INVALID_REQUEST as in Kafka); unknown topics.
- `validate_only` checks and changes nothing. A change is in force on every broker when it has read the entry
  of the metadata log; on this one when the answer is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.configs.changes import Change, Wish, change_configs
from penstock.metadata.refusal import Refusal
from penstock.wire.api.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request


async def handle(
    broker: Broker, request: Request, message: IncrementalAlterConfigsRequest, permit: Permit
) -> IncrementalAlterConfigsResponse:
    wishes = [
        Wish(
            resource.resource_type,
            resource.resource_name,
            [Change(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in message.resources
    ]
    outcomes = await change_configs(broker, permit, wishes, validate_only=message.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[
            _response(resource, refusal)
            for resource, refusal in zip(message.resources, outcomes, strict=True)
        ]
    )


def refused(message: IncrementalAlterConfigsRequest, code: ErrorCode) -> IncrementalAlterConfigsResponse:
    refusal = Refusal(code, "")
    return IncrementalAlterConfigsResponse(
        responses=[_response(resource, refusal) for resource in message.resources]
    )


def _response(resource: AlterConfigsResource, refusal: Refusal | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.message or None,
    )
