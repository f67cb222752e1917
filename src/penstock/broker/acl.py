"""The words of authorisation, with the numbers that Kafka's protocol gives them."""

from enum import IntEnum

from penstock.wire.errors import ErrorCode


class Operation(IntEnum):
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


REFUSED_WITH = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    Resource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""What a client is told that may not do what it asks for."""

CLUSTER_NAME = "kafka-cluster"
"""The name of the one CLUSTER resource, as Kafka's ACLs spell it."""

NO_AUTHORIZER = "No Authorizer is configured."
"""What requests to change access rules are told beside SECURITY_DISABLED, in Kafka's words."""

NO_AUTHORIZER_ON_BROKER = "No Authorizer is configured on the broker"
"""And what requests to list them are told."""
