"""Topic names that belong to the broker itself. What a name may look like is said in `metadata.names`."""

from penstock.metadata.image import INTERNAL_TOPICS

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
"""The log of Kafka's own controllers. Nobody may create a topic of that name."""

_RESERVED = INTERNAL_TOPICS | {"__share_group_state"}


def is_internal(name: str) -> bool:
    """Whether clients are told that a topic of this name is internal, be it there or not."""
    return name in _RESERVED
