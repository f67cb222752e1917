"""Whose answer says that an object was written.

A service answers a write with the entity tag of what it took. Where a proxy answers in its place, with a page
and the status of a success, that has a tag too: the page's. So tags of a kind that the service has not given
yet, and one that it gave just now, are no proof, and the object is read back.
"""

import re
from collections import deque

_LETTER = re.compile(r"[0-9A-Za-z+/=]")
_KINDS_MAX = 16
_LAST = 64
"""A page has the same tag each time, and objects that differ do not."""


class Receipts:
    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._last: deque[str] = deque(maxlen=_LAST)

    def are_usual(self, tag: str | None) -> bool:
        """Whether this service answers writes like this. Where it gives no tags at all, nobody can tell."""
        if tag is None:
            return True
        if tag in self._last or _kind(tag) not in self._kinds:
            return False
        self._last.append(tag)
        return True

    def learn(self, tag: str | None) -> None:
        """What was answered with this tag was read back."""
        if tag is None:
            return
        if len(self._kinds) >= _KINDS_MAX:
            self._kinds.clear()
        self._kinds.add(_kind(tag))
        self._last.append(tag)


def _kind(tag: str) -> str:
    """Its length, and where it has something else than letters and digits."""
    return _LETTER.sub("x", tag)
