"""What a client needs to log in: tokens of OAUTHBEARER, and the steps of the conversation, for any transport.

`client.py` runs the steps in a thread, `broker/peers` on the broker's loop.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Generator
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import quote_plus, unquote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from penstock.security.proving import NotProvenError, Proof, bearer_proof, plain_proof, scram_proof
from penstock.wire.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ApiMessage

if TYPE_CHECKING:
    from penstock.settings.clients import ClientSecurity, TokenSource

FETCH_SECONDS = 10.0
ANSWER_BYTES_MAX = 1024 * 1024

Step = tuple[ApiMessage, type[ApiMessage]]


class LoginError(Exception):
    """The login failed. The message is one sentence for a person, and no secret."""


def login_steps(security: ClientSecurity, nonce: bytes) -> Generator[Step, ApiMessage, int]:
    """The requests of a login, one after the other, each with the class of its answer, which is sent in. It
    returns how many milliseconds the login lasts; 0: as long as the connection."""
    assert security.mechanism is not None
    shaken = yield SaslHandshakeRequest(mechanism=security.mechanism), SaslHandshakeResponse
    assert isinstance(shaken, SaslHandshakeResponse)
    if shaken.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(shaken.mechanisms) or "nothing"
        raise LoginError(f"The broker does not offer {security.mechanism}; it offers {offered}.")
    if shaken.error_code:
        raise LoginError("The broker asks for no login there; look at security.protocol.")
    proof = _proof(security, nonce)
    token = next(proof)
    while True:
        answer = yield SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse
        assert isinstance(answer, SaslAuthenticateResponse)
        if answer.error_code:
            why = answer.error_message or ErrorCode(answer.error_code).name
            raise LoginError(f"The login failed: {why.rstrip('.')}.")
        try:
            token = proof.send(bytes(answer.auth_bytes))
        except StopIteration:
            return answer.session_lifetime_ms
        except (NotProvenError, UnicodeDecodeError) as error:
            raise LoginError(f"The login was broken off: {error}.") from None


def _proof(security: ClientSecurity, nonce: bytes) -> Proof:
    if security.mechanism == "PLAIN":
        return plain_proof(security.user, security.password)
    if security.mechanism == "OAUTHBEARER":
        assert security.tokens is not None
        return bearer_proof(fetch_token(security.tokens))
    assert security.mechanism is not None
    return scram_proof(
        security.mechanism,
        security.user,
        security.password,
        b64encode(nonce).decode().rstrip("="),
        by_token=security.by_token,
    )


class _NoRedirect(HTTPRedirectHandler):
    """The secret is for the issuer that was named, and not for whomever it sends us to."""

    def redirect_request(self, req: Request, fp: IO[bytes], *_more: Any) -> Request | None:
        fp.close()
        raise URLError("it sends us elsewhere")


def fetch_token(source: TokenSource) -> str:
    """The token that a client shows: from its file, or from the issuer (RFC 6749, client credentials)."""
    place = urlsplit(source.url)
    shown = f"{place.scheme}://{place.hostname or ''}{place.path}"
    try:
        if place.scheme == "file":
            with open(unquote(place.path), encoding="ascii") as file:
                return file.read(ANSWER_BYTES_MAX).strip()
        form = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
        pair = (source.client_id, source.client_secret)
        written = ":".join(map(quote_plus, pair) if source.url_encoded else pair)
        headers = {"Authorization": "Basic " + b64encode(written.encode()).decode()}
        request = Request(source.url, urlencode(form).encode(), headers)
        with build_opener(_NoRedirect).open(request, timeout=FETCH_SECONDS) as answer:
            document = json.loads(answer.read(ANSWER_BYTES_MAX))
        token = document.get("access_token") if isinstance(document, dict) else None
    except (OSError, ValueError, HTTPException) as error:
        raise LoginError(f"No token could be had from {shown}: {error}.") from None
    if not isinstance(token, str) or not token:
        raise LoginError(f"What {shown} answered has no access_token.")
    return token


def new_nonce() -> bytes:
    """For clients. A broker takes its own from its entropy."""
    return os.urandom(24)
