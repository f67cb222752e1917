"""Tokens that are not to be believed, and issuers that behave badly, beside a client that must notice nothing.

    python -m conformance.security.tokens

Each token is sent to a broker that fetches its keys over HTTP. A bad one is refused as by Kafka: an answer that says
`invalid_token`, then SASL_AUTHENTICATION_FAILED without a detail, then the connection is closed.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from conformance.security.handshakes import beside, connect
from conformance.security.stage import AUDIENCE, ISSUER, USER, Stage, stage
from penstock.wire.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.headers import parse_response_header, request_header
from penstock.wire.schema import ApiMessage

R = TypeVar("R", bound=ApiMessage)
PATIENCE_S = 20.0
DAY = 86_400
TELLING = ("expired", "signature", "algorithm", "audience", "issuer", "kid", "key", "future", USER)
"""Words that would tell somebody what to forge better."""


class Issuer:
    """Serves a key set over HTTP, well or badly."""

    def __init__(self) -> None:
        self.keys: list[dict[str, str]] = []
        self.behaviour = "well"
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                with contextlib.suppress(OSError):  # The broker had enough.
                    outer.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        document = json.dumps({"keys": self.keys}).encode()
        match self.behaviour:
            case "down":
                to.connection.shutdown(socket.SHUT_RDWR)
                return
            case "failing":
                to.send_error(500)
                return
            case "elsewhere" if to.path == "/keys":
                _send(to, 302, b"", Location="/other")
                return
            case "another protocol":
                _send(to, 302, b"", Location="file:///etc/passwd")
                return
            case "huge":
                document = b'{"keys": [' + b" " * (64 << 20)
            case "rubbish":
                document = b"[" * 100_000
            case "empty":
                document = b'{"keys": []}'
            case "slow":
                to.send_response(200)
                to.end_headers()
                for _ in range(600):
                    to.wfile.write(b" ")
                    time.sleep(0.1)
                return
        _send(to, 200, document)


def _send(to: BaseHTTPRequestHandler, code: int, body: bytes, **headers: str) -> None:
    to.send_response(code)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        to.send_header(name, value)
    to.end_headers()
    to.wfile.write(body)


# One login ----------------------------------------------------------------------------------------


def _ask(line: socket.socket, message: ApiMessage, response: type[R]) -> R:
    body = request_header(message.api_key, 1, 1, "tokens") + encode(message, 1)
    line.sendall(struct.pack(">i", len(body)) + body)
    size = _exactly(line, 4)
    data = memoryview(_exactly(line, struct.unpack(">i", size)[0]))
    _, at = parse_response_header(message.api_key, 1, data)
    return decode(response, 1, data, at)[0]


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = line.recv(size - len(found))
        if not part:
            raise ConnectionError("closed")
        found += part
    return found


def log_in(stage: Stage, token: str) -> str:
    """Nothing if the token was believed, else what was wrong with the way in which it was refused, or `refused`."""
    with connect(stage.naked) as line:
        line.settimeout(PATIENCE_S)
        shaken = _ask(line, SaslHandshakeRequest(mechanism="OAUTHBEARER"), SaslHandshakeResponse)
        if shaken.error_code:
            return f"the handshake was answered {shaken.error_code}"
        said = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        try:
            answer = _ask(line, SaslAuthenticateRequest(auth_bytes=said), SaslAuthenticateResponse)
        except ConnectionError:
            return "closed"
        if answer.error_code == ErrorCode.NONE and not answer.auth_bytes:
            return ""
        if answer.error_code == ErrorCode.NONE:
            if json.loads(bytes(answer.auth_bytes)).get("status") != "invalid_token":
                return f"it was told {bytes(answer.auth_bytes)!r}"
            answer = _ask(line, SaslAuthenticateRequest(auth_bytes=b"\x01"), SaslAuthenticateResponse)
        if answer.error_code != ErrorCode.SASL_AUTHENTICATION_FAILED:
            return f"it was answered {answer.error_code}"
        told = (answer.error_message or "").lower()
        if any(word in told for word in TELLING):
            return f"it was told too much: {told}"
        return "refused" if line.recv(1) == b"" else "the connection stayed open"


# Tokens -------------------------------------------------------------------------------------------


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def bad_tokens(stage: Stage) -> dict[str, str]:
    now = int(time.time())
    foreign = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = stage.signing_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = {"sub": USER, "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + 600}
    head, body, signature = stage.token().split(".")

    def by_secret(header: dict[str, str]) -> str:
        """Signed by the public key as if it were a secret one, which the library would refuse to do."""
        signed = f"{_part(header)}.{_part(claims)}"
        mark = hmac.digest(public, signed.encode(), hashlib.sha256)
        return f"{signed}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"

    unsigned = _part({"alg": "none", "kid": "one"}) + "." + _part(claims) + "."
    return {
        "expired": stage.token(iat=now - DAY, exp=now - DAY + 60),
        "not yet valid": stage.token(nbf=now + DAY, exp=now + 2 * DAY),
        "issued tomorrow": stage.token(iat=now + DAY, exp=now + 2 * DAY),
        "no end": jwt.encode({k: v for k, v in claims.items() if k != "exp"}, stage.signing_key, "RS256", {"kid": "one"}),
        "forged": stage.token(key=foreign),
        "signature cut": f"{head}.{body}.{signature[:-8]}",
        "signature left out": f"{head}.{body}.",
        "other claims": f"{head}.{_part({**claims, 'sub': 'root'})}.{signature}",
        "alg none": unsigned,
        "alg None": unsigned.replace(_part({"alg": "none", "kid": "one"}), _part({"alg": "None", "kid": "one"})),
        "HS256 by the public key": by_secret({"alg": "HS256", "kid": "one"}),
        "key in the header": jwt.encode(
            claims, foreign, "RS256", {"jwk": json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(foreign.public_key()))}
        ),
        "keys from a URL": jwt.encode(claims, foreign, "RS256", {"kid": "one", "jku": "http://127.0.0.1:1/"}),
        "foreign issuer": stage.token(iss="https://elsewhere.example"),
        "foreign audience": stage.token(aud="another"),
        "foreign key id": jwt.encode(claims, stage.signing_key, "RS256", {"kid": "../../one"}),
        "nobody": stage.token(sub=""),
        "not a token": "x.y.z",
        "empty": "",
    }  # fmt: skip


def judge(ready: Stage, failures: list[str]) -> None:
    for name, token in bad_tokens(ready).items():
        _held(name, log_in(ready, token), "refused", failures)
    for name, size in (("100 KB", 100_000), ("300 KB", 300_000)):
        _held(f"a token of {name}", log_in(ready, ready.token(padding="x" * size)), "refused", failures)
    _held("a token beyond the frame", log_in(ready, ready.token(padding="x" * 600_000)), "closed", failures)
    _held("a right token", log_in(ready, ready.token()), "", failures)


def rotate(ready: Stage, issuer: Issuer, failures: list[str]) -> None:
    """The issuer signs with a new key, then forgets the old one."""
    old, new = ready.signing_key, rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = {
        "sub": USER,
        "aud": AUDIENCE,
        "iss": ISSUER,
        "iat": int(time.time()),
        "exp": int(time.time()) + 600,
    }

    def signed() -> str:
        return jwt.encode(claims, new, "RS256", {"kid": "two"})

    _held("a key before it is known", log_in(ready, signed()), "refused", failures)
    entry = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(new.public_key()))
    issuer.keys.append({**entry, "kid": "two", "use": "sig"})
    _eventually("a key that was added", lambda: log_in(ready, signed()), "", failures)
    _held("the old key beside it", log_in(ready, ready.token(key=old)), "", failures)
    del issuer.keys[0]
    _eventually(
        "the old key when it is gone", lambda: log_in(ready, ready.token(key=old)), "refused", failures
    )
    issuer.keys.insert(0, {**ready.jwk, "kid": "one", "use": "sig"})
    _eventually("the old key when it is back", lambda: log_in(ready, ready.token(key=old)), "", failures)


def misbehave(ready: Stage, issuer: Issuer, failures: list[str]) -> None:
    """Keys at hand are used, whatever the issuer does."""
    for behaviour in ("down", "failing", "huge", "rubbish", "empty", "another protocol", "slow", "elsewhere"):
        issuer.behaviour = behaviour
        asked = issuer.asked
        deadline = time.monotonic() + 3 * PATIENCE_S
        while issuer.asked == asked and time.monotonic() < deadline:
            time.sleep(0.05)
        seen = "" if issuer.asked > asked else "it was never asked"
        _held(f"while the issuer is {behaviour}", seen or log_in(ready, ready.token()), "", failures)
    issuer.behaviour = "well"
    text = (ready.folder / "broker.log").read_text(errors="replace")
    if "Traceback" in text:
        failures.append("an exception in the broker's log")
        print(text[-2000:])


def _held(name: str, found: str, wanted: str, failures: list[str]) -> None:
    if found != wanted:
        failures.append(name)
    print(f"{'held  ' if found == wanted else 'FAILED'} {name}: {found or 'believed'}", flush=True)


def _eventually(name: str, look: Callable[[], str], wanted: str, failures: list[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    found = look()
    while found != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
        found = look()
    _held(name, found, wanted, failures)


def main() -> int:
    failures: list[str] = []
    issuer = Issuer()

    def prepare(made: Stage) -> None:
        issuer.keys.append({**made.jwk, "kid": "one", "use": "sig"})
        prefix = "sasl.oauthbearer.jwks.endpoint"
        made.extra = {
            f"{prefix}.url": issuer.url,
            f"{prefix}.refresh.ms": "1000",
            f"{prefix}.retry.backoff.ms": "100",
            f"{prefix}.retry.backoff.max.ms": "500",
        }

    with stage(prepare) as ready:
        with beside(ready, "a healthy client beside bad tokens", failures):
            judge(ready, failures)
        with beside(ready, "a healthy client while keys rotate", failures):
            rotate(ready, issuer, failures)
        with beside(ready, "a healthy client while the issuer misbehaves", failures):
            misbehave(ready, issuer, failures)
    print(f"FAILED: {', '.join(failures)}" if failures else "all held")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
