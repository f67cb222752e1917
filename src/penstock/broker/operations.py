"""What a principal may do with a resource, as the bit field that Kafka's answers carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.acl import CLUSTER_NAME, Operation, Resource

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Session

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


def topic_operations(broker: Broker, session: Session, name: str) -> int:
    return _field(broker, session, _TOPIC, Resource.TOPIC, name)


def group_operations(broker: Broker, session: Session, name: str) -> int:
    return _field(broker, session, _GROUP, Resource.GROUP, name)


def cluster_operations(broker: Broker, session: Session) -> int:
    """None at all for who may not even describe the cluster."""
    if not broker.authorized(session, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        return 0
    return _field(broker, session, _CLUSTER, Resource.CLUSTER, CLUSTER_NAME)


def _field(
    broker: Broker, session: Session, operations: tuple[Operation, ...], resource: Resource, name: str
) -> int:
    return sum(
        1 << operation for operation in operations if broker.authorized(session, operation, resource, name)
    )
