"""DescribeCluster 0-2: the brokers, the controller and what the caller may do with the cluster.

- Brokers and controller come from one image, so the controller named is always in the list.
- Version 1 says which kind of endpoint it wants: brokers (1) are served here; controllers (2) are not,
  because Penstock has no controllers apart from its brokers, and anything else is unknown (KIP-919).
- Version 2 lists fenced brokers too if asked (KIP-1073).
- Brokers without the listener that the request came through are left out, as in Metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.operations import NOT_ASKED, cluster_operations
from penstock.wire.api.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request

BROKERS = 1
CONTROLLERS = 2


def handle(
    broker: Broker, request: Request, message: DescribeClusterRequest, permit: Permit
) -> DescribeClusterResponse:
    if message.endpoint_type != BROKERS:
        return _wrong_endpoint(message.endpoint_type)
    image = broker.image
    brokers = []
    for info in sorted(image.brokers.values(), key=lambda info: info.id):
        listener = info.listener(request.session.listener)
        if listener is None or (info.fenced and not message.include_fenced_brokers):
            continue
        brokers.append(
            DescribeClusterBroker(
                broker_id=info.id,
                host=listener.host,
                port=listener.port,
                rack=info.rack,
                is_fenced=info.fenced,
            )
        )
    listed = {entry.broker_id for entry in brokers}
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id if image.controller_id in listed else -1,
        brokers=brokers,
        cluster_authorized_operations=cluster_operations(permit)
        if message.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _wrong_endpoint(wanted: int) -> DescribeClusterResponse:
    if wanted == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER",
        )
    return DescribeClusterResponse(
        error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        error_message=f"Unsupported endpoint type {wanted}",
    )
