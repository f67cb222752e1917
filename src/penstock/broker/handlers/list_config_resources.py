"""ListConfigResources 0-1: what DescribeConfigs can be asked about (KIP-1000, KIP-1142).

- Version 0 lists client metrics subscriptions only; there are none, because telemetry is not served.
- Version 1 lists the types asked for, all of them if none are named: topics, brokers, the loggers of
  brokers, client metrics, and groups that have settings of their own. A type that does not exist is
  UNSUPPORTED_VERSION for the whole request.
- Brokers without the listener that the request came through are left out, as in Metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.image import (
    BROKER_CONFIG,
    BROKER_LOGGER_CONFIG,
    CLIENT_METRICS_CONFIG,
    GROUP_CONFIG,
    TOPIC_CONFIG,
)
from penstock.wire.api.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request

_ALL = (GROUP_CONFIG, CLIENT_METRICS_CONFIG, BROKER_LOGGER_CONFIG, BROKER_CONFIG, TOPIC_CONFIG)


def handle(
    broker: Broker, request: Request, message: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    served = _ALL if request.api_version > 0 else (CLIENT_METRICS_CONFIG,)
    asked = message.resource_types or served
    if any(kind not in served for kind in asked):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in served
            if kind in asked
            for name in _names(broker, request.session.listener, kind)
        ]
    )


def _names(broker: Broker, listener: str, kind: int) -> list[str]:
    image = broker.image
    if kind == TOPIC_CONFIG:
        return list(image.topics)
    if kind in {BROKER_CONFIG, BROKER_LOGGER_CONFIG}:
        return [str(info.id) for info in image.brokers.values() if info.listener(listener) is not None]
    return [name for resource, name in image.configs if resource == kind]
