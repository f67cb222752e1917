"""The client's way to a token: the secret goes to the issuer that was named, and to nobody else."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from msgspec.structs import replace

from penstock.logging_in import LoginError, fetch_token
from penstock.settings import SettingsError
from penstock.settings.clients import TokenSource, client_security


class Issuer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.elsewhere = ""
        self.speaks_http = True
        self.shown: list[str | None] = []

    def source(self) -> TokenSource:
        url = f"http://127.0.0.1:{self.server_port}/token"
        return TokenSource(url=url, client_id="me", client_secret="pencil", scope="")


class Answering(BaseHTTPRequestHandler):
    server: Issuer

    def _answer(self) -> None:
        self.server.shown.append(self.headers.get("authorization"))
        if not self.server.speaks_http:
            self.wfile.write(b"220 ready\r\n")
            return
        if self.server.elsewhere:
            self.send_response(302)
            self.send_header("location", self.server.elsewhere)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"access_token": "t"}')

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def issuers() -> Iterator[tuple[Issuer, Issuer]]:
    made = (Issuer(), Issuer())
    for one in made:
        Thread(target=one.serve_forever, daemon=True).start()
    yield made
    for one in made:
        one.shutdown()
        one.server_close()


def test_an_issuer_gives_a_token(issuers: tuple[Issuer, Issuer]) -> None:
    assert fetch_token(issuers[0].source()) == "t"


def test_name_and_secret_are_written_as_kafkas_clients_write_them(issuers: tuple[Issuer, Issuer]) -> None:
    source = replace(issuers[0].source(), client_secret="a+b/c= d")
    fetch_token(source)
    fetch_token(replace(source, url_encoded=True))
    shown = [b64decode((one or "").removeprefix("Basic ")) for one in issuers[0].shown]
    assert shown == [b"me:a+b/c= d", b"me:a%2Bb%2Fc%3D+d"]


def test_a_file_for_javas_clients_may_name_kafkas_own_classes() -> None:
    package = "org.apache.kafka.common.security.oauthbearer."
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{package}OAuthBearerLoginModule required clientId='me' clientSecret='pencil';",
        "sasl.login.callback.handler.class": f"{package}secured.OAuthBearerLoginCallbackHandler",
        "sasl.login.refresh.buffer.seconds": "60",
        "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
        "sasl.oauthbearer.header.urlencode": "TRUE",
    }
    tokens = client_security(given).tokens
    assert tokens is not None
    assert (tokens.client_id, tokens.client_secret, tokens.url_encoded) == ("me", "pencil", True)
    for name, text in (
        ("sasl.login.callback.handler.class", "com.example.Handler"),
        ("sasl.oauthbearer.header.urlencode", "perhaps"),
    ):
        with pytest.raises(SettingsError, match=name):
            client_security(given | {name: text})


def test_the_secret_is_not_shown_where_an_issuer_sends_us(issuers: tuple[Issuer, Issuer]) -> None:
    named, other = issuers
    named.elsewhere = other.source().url
    with pytest.raises(LoginError, match="elsewhere") as caught:
        fetch_token(named.source())
    assert not other.shown
    assert "pencil" not in str(caught.value)


def test_what_is_no_issuer_is_told_in_a_sentence(issuers: tuple[Issuer, Issuer]) -> None:
    issuers[0].speaks_http = False
    with pytest.raises(LoginError, match=r"No token could be had from http://127\.0\.0\.1/token: "):
        fetch_token(issuers[0].source())


def test_a_url_with_a_password_is_refused_and_not_repeated() -> None:
    """It would be taken for a part of the host's name."""
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://me:pencil@issuer/token",
    }
    with pytest.raises(SettingsError, match="without a user in it") as caught:
        client_security(given)
    assert "pencil" not in str(caught.value)
    made = client_security(given | {"sasl.oauthbearer.token.endpoint.url": "https://issuer/token?to=me@x"})
    assert made.tokens is not None
