"""The meaning of an object store's refusal: whether to try again, and one sentence for a person.

The SDK tells a few kinds of error apart and leaves the rest in its text: the status, and the words of the
service. This module reads that text. A service also answers 404 if the bucket or the user does not exist, and
a proxy does if it finds no service. Taken for a missing object, that would look like an empty store.
"""

import re
from enum import Enum
from typing import NamedTuple

from obstore import exceptions

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})</Message>")
_SYSTEM = re.compile(r'(?:message|error): "([^"\\]{1,120})"')
_OPERATION = re.compile(r"Error performing \w+ (\S+) in \S+ - ")

_MISSING = (exceptions.NotFoundError, FileNotFoundError)
_EXISTS = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileExistsError)
_REFUSED = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
_MISUSED = (
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    exceptions.UnknownConfigurationKeyError,
)
_NOT_THE_OBJECT = frozenset(
    ("NoSuchBucket", "ContainerNotFound", "InvalidAccessKeyId", "XAdminUserNotFound", "AccountNotFound")
)
"""What a service calls it if it is not the object that it did not find."""
_PASSING_CODES = frozenset(
    ("RequestTimeout", "SlowDown", "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch")
)
"""Refusals with any status that another attempt may not meet: too slow, too many, hurt on the way."""
_NOT_FOUND = 404
_CONFLICT = 409
_PASSING = frozenset((408, _CONFLICT, 425, 429))
"""Refusals of the kind 4xx that another attempt may not meet. S3 answers 409 to a conditional write that came
together with another one, and says nothing then about which of them counts."""
_NOT_IMPLEMENTED = 501
_LENGTH_MAX = 300


_RANGE_STATUS = 416


class Verdict(Enum):
    MISSING = "missing"
    EXISTS = "exists"
    REFUSED = "refused"
    """Who we are, or what we ask for, is not accepted. Nothing was done; asking at once again is no use."""
    MISUSED = "misused"
    AGAIN = "again"
    """It may have been done or not."""


class Explained(NamedTuple):
    verdict: Verdict
    reason: str


def explain(error: Exception) -> Explained:
    text = str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    return Explained(_verdict(error, status, code), _reason(text, error, status, code))


def concerns_range(error: Exception) -> bool:
    """A range beyond the end of an object is an error of the general kind."""
    text = str(error)
    return f"status code: {_RANGE_STATUS}" in text or (not _STATUS.search(text) and "range" in text.lower())


def _verdict(error: Exception, status: int, code: str) -> Verdict:
    if isinstance(error, _MISUSED) or status == _NOT_IMPLEMENTED:
        return Verdict.MISUSED
    if status in _PASSING or code in _PASSING_CODES:
        return Verdict.AGAIN
    if isinstance(error, _EXISTS):
        return Verdict.EXISTS
    if code in _NOT_THE_OBJECT or isinstance(error, _REFUSED):
        return Verdict.REFUSED
    if isinstance(error, _MISSING):
        # Whoever looked for the object says what it did not find. Others have no business here.
        return Verdict.AGAIN if status == _NOT_FOUND and not code else Verdict.MISSING
    # 416: a range beyond the end. Whether the object is shorter, only a look at its size tells.
    if 400 <= status < 500 and status not in (_NOT_FOUND, _RANGE_STATUS):
        return Verdict.REFUSED
    return Verdict.AGAIN


def _reason(text: str, error: Exception, status: int, code: str) -> str:
    if code == "NoSuchBucket":
        return "the bucket does not exist"
    if code == "ContainerNotFound":
        return "the container does not exist"
    if status == _NOT_IMPLEMENTED:
        return "the service does not know conditional writes (If-None-Match), which Penstock needs"
    if code:
        message = found[1] if (found := _MESSAGE.search(text)) else ""
        return f"{code}: {message}".rstrip(".: ")[:_LENGTH_MAX]
    if status:
        return f"the service answered {status}"
    where = found[1].split("?")[0] if (found := _OPERATION.search(text)) else ""
    if found := _SYSTEM.search(text):
        return f"{found[1]} ({where})" if where else found[1]
    first = (text.splitlines() or [type(error).__name__])[0]
    return (first or type(error).__name__)[:_LENGTH_MAX]
