"""The words of authorisation, and what clients are told that may not do what they ask for."""

from penstock.security.words import CLUSTER_NAME, Operation, Resource
from penstock.wire.errors import ErrorCode

__all__ = [
    "CLUSTER_NAME", "NO_AUTHORIZER", "NO_AUTHORIZER_ON_BROKER", "REFUSED_WITH", "Operation", "Resource",
]  # fmt: skip

REFUSED_WITH = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    Resource.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""What a client is told that may not do what it asks for."""

NO_AUTHORIZER = "No Authorizer is configured."
"""What requests to change access rules are told beside SECURITY_DISABLED, in Kafka's words."""

NO_AUTHORIZER_ON_BROKER = "No Authorizer is configured on the broker"
"""And what requests to list them are told."""
