"""Who may read /metrics: whoever shows a token, where the broker was given a file of them.

Metrics name topics and groups, and are wanted most while a cluster is sick. So what they ask for is a file of
the broker's own and not a login of the cluster. Collectors show the token as they can: as a bearer's, or as
the password of any name. The file is read for each request, so a changed one holds at once; while it has two
lines, the collectors can be moved from one token to the other.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from http import HTTPStatus

from penstock.security.credentials import same_secret
from penstock.settings import SettingsError
from penstock.web.pages import Page, plain

log = logging.getLogger(__name__)

CHARACTERS_MIN = 16
"""Nobody counts wrong guesses here."""
FILE_BYTES_MAX = 65_536
_ASK = (b"www-authenticate", b'Basic realm="metrics", charset="UTF-8"')
"""So that a browser asks for it, too."""


class Tokens:
    """The file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> list[str]:
        """SettingsError says what is wrong with the file."""
        try:
            with open(self._path, encoding="utf-8") as file:
                tokens = file.read(FILE_BYTES_MAX).split()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise SettingsError(f"metrics.token.file {self._path} cannot be read: {why}.") from None
        if not tokens or min(map(len, tokens)) < CHARACTERS_MIN:
            raise SettingsError(
                f"metrics.token.file {self._path} has one token in a line, of {CHARACTERS_MIN} characters "
                "at least."
            )
        return tokens

    async def refusal(self, authorization: bytes | None) -> Page | None:
        """The page for those who may not; None: this one may."""
        shown = None if authorization is None else _shown(authorization)
        if shown is not None:
            try:
                tokens = await asyncio.to_thread(self.read)
            except SettingsError as error:
                log.error("metrics were refused: %s", error)
                return plain(HTTPStatus.SERVICE_UNAVAILABLE, "The broker's log says why.")
            if any(same_secret(shown, token) for token in tokens):
                return None
        page = plain(HTTPStatus.UNAUTHORIZED, "Metrics of this broker ask for a token (metrics.token.file).")
        return page._replace(headers=(_ASK,))


def _shown(authorization: bytes) -> str | None:
    """The secret in a request's head, if there is one."""
    scheme, _, rest = authorization.strip().partition(b" ")
    try:
        if scheme.lower() == b"bearer":
            return rest.strip().decode()
        if scheme.lower() == b"basic":
            return b64decode(rest.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        pass
    return None
