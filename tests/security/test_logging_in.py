"""The client's way to a token: the secret goes to the issuer that was named, and to nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from penstock.logging_in import LoginError, fetch_token
from penstock.settings.clients import TokenSource


class Issuer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.elsewhere = ""
        self.shown: list[str | None] = []

    def source(self) -> TokenSource:
        url = f"http://127.0.0.1:{self.server_port}/token"
        return TokenSource(url=url, client_id="me", client_secret="pencil", scope="")


class Answering(BaseHTTPRequestHandler):
    server: Issuer

    def _answer(self) -> None:
        self.server.shown.append(self.headers.get("authorization"))
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


def test_the_secret_is_not_shown_where_an_issuer_sends_us(issuers: tuple[Issuer, Issuer]) -> None:
    named, other = issuers
    named.elsewhere = other.source().url
    with pytest.raises(LoginError, match="elsewhere") as caught:
        fetch_token(named.source())
    assert not other.shown
    assert "pencil" not in str(caught.value)
