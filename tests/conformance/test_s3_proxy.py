"""The proxy does to requests what its rules say, and nothing else."""

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conformance.s3.proxy import Proxy, Rule

from penstock.storage.stores.objects import StoreError
from penstock.storage.stores.remote import RemoteStore
from penstock.testing.waiting import eventually, until

BODY = bytes(range(200))


class Server(ThreadingHTTPServer):
    """Keeps what it was asked, and answers with the same bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path))
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.server_address[1], "bucket/root", 1) as found:
        yield found


def ask(proxy: Proxy, method: str, key: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    try:
        connection.request(method, f"/bucket/root/{key}", body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def until_asked(server: Server, asked: list[tuple[str, str]]) -> None:
    until(lambda: server.asked == asked, 5, f"{asked}")


def test_a_healthy_one_passes_everything(proxy: Proxy, server: Server) -> None:
    assert ask(proxy, "GET", "wal/1") == (200, BODY)
    assert server.asked == [("GET", "/bucket/root/wal/1")]


def test_refusals_concern_a_prefix_and_end(proxy: Proxy, server: Server) -> None:
    with proxy.sick(Rule("refuse", "GET", "wal/", status=403)):
        assert ask(proxy, "GET", "wal/1")[0] == 403
        assert ask(proxy, "GET", "segments/1")[0] == 200
    assert ask(proxy, "GET", "wal/1")[0] == 200
    assert proxy.faults == {"refuse": 1}


def test_a_lost_answer_and_a_dropped_request(proxy: Proxy, server: Server) -> None:
    for does, served in (("lose", 1), ("drop", 0)):
        server.asked.clear()
        with proxy.sick(Rule(does)), pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(proxy, "PUT", "wal/1", b"x")
        assert len(server.asked) == served


def test_bodies_that_are_cut_or_flipped(proxy: Proxy, server: Server) -> None:
    with proxy.sick(Rule("cut", "GET")), pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(proxy, "GET", "wal/1")
    with proxy.sick(Rule("flip", "GET")):
        _status, body = ask(proxy, "GET", "wal/1")
    changed = [one ^ other for one, other in zip(body, BODY, strict=True) if one != other]
    assert len(changed) == 1 and changed[0].bit_count() == 1


def test_a_request_that_is_repeated(proxy: Proxy, server: Server) -> None:
    with proxy.sick(Rule("repeat", "PUT", seconds=(0.1, 0.1))):
        ask(proxy, "PUT", "wal/1", b"x")
    until_asked(server, [("PUT", "/bucket/root/wal/1")] * 2)


async def test_a_write_that_comes_back_after_the_deletion(
    proxy: Proxy, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted as the brokers' client does it, whichever request that is."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "unused")
    store = RemoteStore(f"s3://bucket/root?endpoint=http://127.0.0.1:{proxy.port}&region=us-east-1")
    with proxy.sick(Rule("haunt", "PUT")):
        ask(proxy, "PUT", "wal/1", b"x")
        with contextlib.suppress(StoreError):  # What is answered here is no answer to a deletion.
            await store.delete("wal/1")
    put = ("PUT", "/bucket/root/wal/1")
    await eventually(lambda: server.asked.count(put) == 2)
    assert server.asked[1] != put
    assert proxy.faults == {"haunt": 1, "came back": 1}


def test_a_held_write_is_served_before_the_one_that_releases_it(proxy: Proxy, server: Server) -> None:
    with proxy.sick(Rule("hold", "PUT", "meta/log/")):
        assert ask(proxy, "PUT", "meta/log/7", b"x")[0] == 503
    assert server.asked == [] and proxy.held == 1
    with proxy.sick(Rule("release", "PUT", "manifests/", times=1)):
        assert ask(proxy, "PUT", "manifests/1", b"y")[0] == 200
    assert server.asked == [("PUT", "/bucket/root/meta/log/7"), ("PUT", "/bucket/root/manifests/1")]
    assert proxy.held == 0
