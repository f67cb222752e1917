"""Which topic names are allowed, and which ones belong to the broker itself.

The rules and their wording are Kafka's: a name is 1 to 249 ASCII letters, digits, '.', '_' and '-', and
neither "." nor "..", so no name can climb out of a directory or break a key of the store.
"""

from penstock.metadata.image import INTERNAL_TOPICS

NAME_LENGTH_MAX = 249
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
"""The log of Kafka's own controllers. Nobody may create a topic of that name."""

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_RESERVED = INTERNAL_TOPICS | {"__share_group_state"}


def name_fault(name: str) -> str | None:
    """Why `name` cannot be a topic, in Kafka's words, or None if it can."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif not _LEGAL.issuperset(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return "Topic name is invalid: " + reason


def is_internal(name: str) -> bool:
    """Whether the name belongs to a topic that brokers keep their own state in."""
    return name in _RESERVED
