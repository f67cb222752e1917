"""Rules for the names of topics."""

from penstock.metadata.image import ClusterImage, fold_name, has_fold
from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

TOPIC_NAME_LENGTH_MAX = 249

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def topic_name_problem(name: str) -> str | None:
    """Why `name` cannot be a topic's, in Kafka's words, or None.

    The rule keeps every name a safe path segment: no slash, no '.' or '..', bounded length.
    """
    if not name:
        problem = "the empty string is not allowed"
    elif name in {".", ".."}:
        problem = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
    elif not _LEGAL.issuperset(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {problem}"


def check_new_topic_name(image: ClusterImage, name: str) -> Refusal | None:
    """Whether a topic may be created under this name now."""
    if name in image.topics:
        return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    problem = topic_name_problem(name)
    if problem is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if has_fold(name):
        other = image.folded_names.get(fold_name(name))
        if other is not None:
            message = f"Topic '{name}' collides with existing topic: {other}"
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    return None
