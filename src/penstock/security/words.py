"""The words of access rules, with the numbers that Kafka's protocol gives them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Operation(IntEnum):
    """What somebody does to a resource."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Resource(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """How the name of a rule means resources. ANY and MATCH are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    DENY = 2
    ALLOW = 3


ANY: Final = 1
"""In a filter: whatever the kind of resource, operation or permission."""
ALL_OPERATIONS: Final = 2
"""In a rule: each operation."""
EVERY_NAME: Final = "*"
"""The literal name that means every resource of a kind; also every host."""
EVERYBODY: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one CLUSTER resource, as Kafka's rules spell it."""
