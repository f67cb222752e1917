"""The operations that a principal may do on a resource, as the bit field that Kafka's answers carry."""

from __future__ import annotations

from penstock.broker.acl import CLUSTER_NAME, Operation, Resource
from penstock.broker.rights import DESCRIBE_CLUSTER, Permit, Right

NOT_ASKED = -0x80000000
"""The value of the field when the request did not ask for it."""

_TOPIC = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
_CLUSTER = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
_GROUP = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)


def topic_operations(permit: Permit, name: str) -> int:
    return _field(permit, _TOPIC, Resource.TOPIC, name)


def group_operations(permit: Permit, name: str) -> int:
    return _field(permit, _GROUP, Resource.GROUP, name)


def cluster_operations(permit: Permit) -> int:
    """None at all for who may not even describe the cluster."""
    return _field(permit, _CLUSTER, Resource.CLUSTER, CLUSTER_NAME) if permit.sees(DESCRIBE_CLUSTER) else 0


def _field(permit: Permit, operations: tuple[Operation, ...], resource: Resource, name: str) -> int:
    return sum(1 << operation for operation in operations if permit.sees(Right(operation, resource), name))
