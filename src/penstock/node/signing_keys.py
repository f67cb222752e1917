"""The keys that sign OAUTHBEARER's tokens, fetched from a file or over HTTP.

They are fetched before a broker serves, and it does not start without them. Later they are fetched again from
time to time, and when a token names a key that is not there, as after an issuer's rotation. That login fails;
the next one finds the key. While the issuer cannot be reached, the keys at hand are used.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from penstock.security.sasl.oauthbearer import BearerRefused, BearerToken
from penstock.security.tokens import BadKeySetError, Expected, KeySet, UnknownKey, validate

if TYPE_CHECKING:
    from http.client import HTTPMessage

    from penstock.settings.doors import OauthSettings

log = logging.getLogger(__name__)

FETCH_SECONDS = 10.0
DOCUMENT_BYTES_MAX = 1024 * 1024
"""A key set has a few kilobytes."""
UNKNOWN_SECONDS = 5.0
"""How often unknown keys, which anybody can name, make us ask."""


class KeysError(Exception):
    """The keys cannot be had. The message is one sentence for a person."""


class SigningKeys:
    def __init__(self, oauth: OauthSettings) -> None:
        self._oauth = oauth
        self._expected = Expected(
            issuer=oauth.issuer,
            audiences=oauth.audiences,
            skew_ms=oauth.skew_seconds * 1000,
            subject_claim=oauth.sub_claim,
            scope_claim=oauth.scope_claim,
        )
        self._keys: KeySet
        self._missed = asyncio.Event()

    async def fetch(self) -> None:
        """Fetch the keys. KeysError if that fails."""
        self._keys = await asyncio.to_thread(_fetched, self._oauth.jwks_url)

    def judge(self, token: str, now_ms: int) -> BearerToken | BearerRefused:
        """Who a token speaks for."""
        found = validate(token, self._keys, self._expected, now_ms)
        if isinstance(found, UnknownKey):
            self._missed.set()
        return found

    async def refresh(self) -> None:
        """Fetch the keys from time to time, for ever."""
        oauth = self._oauth
        pause = oauth.refresh_ms / 1000
        retry_ms = oauth.retry_ms
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._missed.wait()
            except TimeoutError:
                pass
            self._missed.clear()
            try:
                await self.fetch()
            except KeysError as error:
                log.warning("kept the keys of tokens: %s", error)
                pause = min(retry_ms, oauth.retry_max_ms) / 1000
                retry_ms = min(2 * retry_ms, oauth.retry_max_ms)
                await asyncio.sleep(pause)
            else:
                pause, retry_ms = oauth.refresh_ms / 1000, oauth.retry_ms
                await asyncio.sleep(min(UNKNOWN_SECONDS, pause))


class _SameScheme(HTTPRedirectHandler):
    """Goes where an issuer sends us, but not from https to a place that anybody on the way can answer for."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if urlsplit(newurl).scheme != self._scheme:
            fp.close()
            raise URLError("it was redirected from one protocol to another")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _downloaded(url: str, scheme: str) -> bytes:
    """All of it within the time, from servers that send a byte now and then too."""
    until = time.monotonic() + FETCH_SECONDS
    data = bytearray()
    with build_opener(_SameScheme(scheme)).open(url, timeout=FETCH_SECONDS) as answer:
        while part := answer.read1(DOCUMENT_BYTES_MAX + 1 - len(data)):
            data += part
            if time.monotonic() > until:
                raise URLError("it took too long")
    return bytes(data)


def _fetched(url: str) -> KeySet:
    place = urlsplit(url)
    shown = f"{place.scheme}://{place.hostname or ''}{place.path}"
    try:
        if place.scheme == "file":
            with open(unquote(place.path), "rb") as file:
                data = file.read(DOCUMENT_BYTES_MAX + 1)
        else:
            data = _downloaded(url, place.scheme)
    except (OSError, ValueError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else getattr(error, "strerror", None)
        raise KeysError(f"The keys of tokens could not be fetched from {shown}: {reason or error}.") from None
    if len(data) > DOCUMENT_BYTES_MAX:
        raise KeysError(f"What {shown} has is too long for a key set.")
    try:
        document: Any = json.loads(data)
        return KeySet(document)
    except BadKeySetError as error:
        raise KeysError(f"What {shown} has is not usable: {error}.") from None
    except (ValueError, RecursionError):
        raise KeysError(f"What {shown} has is not JSON.") from None
