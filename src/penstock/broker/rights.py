"""The rights that APIs ask for, and the permit that says what a principal may do in one request.

A right is an operation on resources of one kind. The rows of `broker.registry` say which rights an API asks
for. Dispatch makes a permit for each request, and handlers part their items by it. The `Rules` of the broker
decide. Without rules every principal may do everything, as in a Kafka without an authorizer. Then all
requests share one permit, and asking it costs next to nothing.

Rules are values: a change of rules gives the broker other ones. So an answer of a permit holds while
`broker.rules` is the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.audit import literal
from penstock.broker.acl import CLUSTER_NAME, REFUSED_WITH, Operation, Resource

if TYPE_CHECKING:
    from penstock.audit import Asked, Audit
    from penstock.wire.errors import ErrorCode


class Rules(Protocol):
    """The access rules of a broker. They never change."""

    def allow(
        self, principal: str, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool: ...

    def allow_any(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Is the operation allowed on at least one resource of the kind, whatever its name?"""


class Right(NamedTuple):
    """An operation on resources of one kind."""

    operation: Operation
    resource: Resource
    or_cluster: Operation | None = None
    """This operation on the cluster will do instead."""
    or_any: tuple[Operation, Resource] | None = None
    """And so will this one, on whatever resource of the kind."""

    @property
    def code(self) -> ErrorCode:
        """What a client is told that does not have it."""
        return REFUSED_WITH[self.resource]


class Permit(NamedTuple):
    """Says which resources one request may touch."""

    rules: Rules | None = None
    """None: everything."""
    principal: str = ""
    host: str = ""
    leads: bool = True
    """False: another broker may lead what this one leads by its image. Told where the row says Fresh.SURE."""
    audit: Audit | None = None
    asked: Asked | None = None
    """The request that it was made for; given with `audit`. It makes no difference to the permit."""

    def allows(self, right: Right, name: str = CLUSTER_NAME) -> bool:
        """Is the right there? If not, somebody asked for what they may not have, and the audit is told."""
        if self.rules is None or self.sees(right, name):
            return True
        if self.audit is not None and self.asked is not None:
            what = f"{right.operation.name.lower()} {right.resource.name.lower()}={literal(name)}"
            self.audit.refused(self.principal, self.host, what, self.asked)
        return False

    def sees(self, right: Right, name: str = CLUSTER_NAME) -> bool:
        """Is the right there? For what is left out of an answer, and for what tells somebody's rights: nobody
        asked for it by name, so the audit is not told."""
        rules = self.rules
        if rules is None:
            return True
        principal, host = self.principal, self.host
        operation, resource, or_cluster, or_any = right
        return (
            rules.allow(principal, host, operation, resource, name)
            or (
                or_cluster is not None
                and rules.allow(principal, host, or_cluster, Resource.CLUSTER, CLUSTER_NAME)
            )
            or (or_any is not None and rules.allow_any(principal, host, *or_any))
        )

    def of_now(self, rules: Rules | None) -> Permit:
        """The permit of the same request by the rules of the moment: some were taken away while it waited."""
        return self if rules is self.rules else self._replace(rules=rules)

    def refusal(self, right: Right, name: str = CLUSTER_NAME) -> ErrorCode | None:
        """The code to refuse with; None if the right is there."""
        return None if self.rules is None or self.allows(right, name) else right.code


EVERYTHING = Permit()

READ_TOPIC = Right(Operation.READ, Resource.TOPIC)
WRITE_TOPIC = Right(Operation.WRITE, Resource.TOPIC)
CREATE_TOPIC = Right(Operation.CREATE, Resource.TOPIC, or_cluster=Operation.CREATE)
DELETE_TOPIC = Right(Operation.DELETE, Resource.TOPIC, or_cluster=Operation.DELETE)
SEE_DELETED_TOPIC = Right(Operation.DESCRIBE, Resource.TOPIC, or_cluster=Operation.DELETE)
DELETE_RECORDS = Right(Operation.DELETE, Resource.TOPIC)
ALTER_TOPIC = Right(Operation.ALTER, Resource.TOPIC)
DESCRIBE_TOPIC = Right(Operation.DESCRIBE, Resource.TOPIC)
DESCRIBE_EPOCHS = Right(Operation.DESCRIBE, Resource.TOPIC, or_cluster=Operation.CLUSTER_ACTION)
DESCRIBE_TOPIC_CONFIGS = Right(Operation.DESCRIBE_CONFIGS, Resource.TOPIC)
ALTER_TOPIC_CONFIGS = Right(Operation.ALTER_CONFIGS, Resource.TOPIC)

READ_GROUP = Right(Operation.READ, Resource.GROUP)
DELETE_GROUP = Right(Operation.DELETE, Resource.GROUP)
DESCRIBE_GROUP = Right(Operation.DESCRIBE, Resource.GROUP)
LIST_GROUP = Right(Operation.DESCRIBE, Resource.GROUP, or_cluster=Operation.DESCRIBE)
DESCRIBE_GROUP_CONFIGS = Right(Operation.DESCRIBE_CONFIGS, Resource.GROUP)
ALTER_GROUP_CONFIGS = Right(Operation.ALTER_CONFIGS, Resource.GROUP)

WRITE_TRANSACTION = Right(Operation.WRITE, Resource.TRANSACTIONAL_ID)
DESCRIBE_TRANSACTION = Right(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID)

ALTER_CLUSTER = Right(Operation.ALTER, Resource.CLUSTER)
DESCRIBE_CLUSTER = Right(Operation.DESCRIBE, Resource.CLUSTER)
DESCRIBE_CLUSTER_CONFIGS = Right(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)
ALTER_CLUSTER_CONFIGS = Right(Operation.ALTER_CONFIGS, Resource.CLUSTER)
WRITE_MARKERS = Right(Operation.ALTER, Resource.CLUSTER, or_cluster=Operation.CLUSTER_ACTION)
BE_A_BROKER = Right(Operation.CLUSTER_ACTION, Resource.CLUSTER)
WRITE_IDEMPOTENTLY = Right(
    Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, or_any=(Operation.WRITE, Resource.TOPIC)
)
CREATE_TOKENS_FOR = Right(Operation.CREATE_TOKENS, Resource.USER)
DESCRIBE_TOKEN = Right(Operation.DESCRIBE, Resource.DELEGATION_TOKEN)
DESCRIBE_TOKENS_OF = Right(Operation.DESCRIBE_TOKENS, Resource.USER)
