"""A small HTTP server on the broker's loop: GET and HEAD, whole answers, nothing that a peer can make grow.

It knows one function, `answer(asked)`, and not what pages mean. A request is a head of a few kilobytes, with
no body. A peer has a few seconds to send it, and to take its answer. There are few connections, since only
probes, collectors of metrics and a person's browser come here. A connection beyond the limit is closed on
arrival, and no connection has two requests under way.

Requests with a body are refused before it is read (413), so nobody can hide a second request in it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, cast
from urllib.parse import parse_qsl, unquote

from penstock.server.server import ListenError, bind_failure

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 16_384
"""A browser's cookies and languages take a few kilobytes."""
HEADERS_MAX = 100
FIELDS_MAX = 100
HEAD_SECONDS = 10.0
"""From the first byte of a request to the end of its head."""
IDLE_SECONDS = 120.0
"""Collectors of metrics keep their connection and come back each minute."""
ANSWER_SECONDS = 60.0
"""From the end of the head until the peer has taken the last byte of its answer."""
METHODS = ("GET", "HEAD")


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    """Without the query, unquoted."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By name in lower case; of a repeated one, the last."""


class Page(NamedTuple):
    """One answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = {}


Answer = Callable[[Asked], Awaitable[Page]]


class HttpServer:
    def __init__(self, answer: Answer, connections_max: int) -> None:
        self.answer = answer
        self.connections_max = connections_max
        self.loop = asyncio.get_running_loop()
        self.connections: dict[HttpConnection, None] = {}
        self.refused = 0
        """Connections that were closed on arrival."""
        self._socket: socket.socket | None = None
        self._listener: asyncio.Server | None = None

    def bind(self, host: str, port: int) -> int:
        """Reserve the address; the port, which the system chose where 0 was asked for."""
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except socket.gaierror as error:
            raise ListenError(f"The address {host}:{port} cannot be resolved: {error.strerror}.") from error
        family, _type, _proto, _canonical, address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            listener.close()
            raise ListenError(bind_failure(host, port, error, "--http")) from error
        listener.setblocking(False)
        self._socket = listener
        bound: int = listener.getsockname()[1]
        return bound

    async def start(self) -> None:
        assert self._socket is not None, "no address is bound"
        try:
            self._listener = await self.loop.create_server(lambda: HttpConnection(self), sock=self._socket)
        except OSError as error:
            host, port = self._socket.getsockname()[:2]
            raise ListenError(bind_failure(host, port, error, "--http")) from error

    async def close(self) -> None:
        """Accept no more and close what is open, answered or not."""
        if self._listener is not None:
            self._listener.close()
        elif self._socket is not None:
            self._socket.close()
        for connection in list(self.connections):
            connection.abort()


class HttpConnection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._head = bytearray()
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keeps = False
        self._closing = False

    # -- the transport calls these --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        server = self._server
        if len(server.connections) >= server.connections_max:
            server.refused += 1
            self._transport.abort()
            return
        server.connections[self] = None
        self._transport.set_write_buffer_limits(high=0)
        self._within(IDLE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._server.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._work is not None:
            self._work.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if not self._head and self._work is None:
            self._within(HEAD_SECONDS)
        self._head += data
        if self._work is None:
            self._take()
        elif len(self._head) > HEAD_BYTES_MAX:
            # The next request can wait. It is read when this one is answered.
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer has taken all of its answer."""
        self._next()

    # -- requests -------------------------------------------------------------------------------------

    def _take(self) -> None:
        end = self._head.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(self._head) >= HEAD_BYTES_MAX:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        head = bytes(self._head[:end])
        del self._head[: end + 4]
        self._within(ANSWER_SECONDS)
        asked = parse_head(head)
        if isinstance(asked, HTTPStatus):
            self._refuse(asked)
            return
        request, self._keeps = asked
        self._work = self._server.loop.create_task(self._answer(request))

    async def _answer(self, asked: Asked) -> None:
        try:
            page = await self._server.answer(asked)
        except Exception:
            log.exception("a page failed path=%s", asked.path)
            page = plain(HTTPStatus.INTERNAL_SERVER_ERROR)
        self._send(page, body=asked.method != "HEAD")

    def _refuse(self, status: HTTPStatus) -> None:
        """What follows cannot be understood: say so and close."""
        self._keeps = False
        self._send(plain(status), body=True)

    def _send(self, page: Page, *, body: bool) -> None:
        if self._closing:
            return
        lines = [f"HTTP/1.1 {page.status.value} {page.status.phrase}"]
        headers = {
            "Content-Type": page.content_type,
            "Content-Length": str(len(page.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "keep-alive" if self._keeps else "close",
            **page.headers,
        }
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        self._transport.write(head + page.body if body else head)
        if not self._transport.get_write_buffer_size():
            self._next()

    def _next(self) -> None:
        """An answer is taken: close, or go on with the next request."""
        self._work = None
        if not self._keeps:
            self._closing = True
            self._transport.close()
            return
        self._within(HEAD_SECONDS if self._head else IDLE_SECONDS)
        if not self._transport.is_reading():
            self._transport.resume_reading()
        if self._head:
            self._take()

    # -- the end --------------------------------------------------------------------------------------

    def _within(self, seconds: float) -> None:
        """Close unless something happens in time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(seconds, self.abort)

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()


def plain(status: HTTPStatus, words: str = "") -> Page:
    """A page that says only what became of the request."""
    return Page(f"{words or status.phrase}\n".encode(), status=status)


def parse_head(head: bytes) -> tuple[Asked, bool] | HTTPStatus:
    """The request, and whether its connection is kept; or the status that refuses it."""
    first, *rest = head.split(b"\r\n")
    try:
        method, target, version = first.decode("ascii").split(" ")
    except ValueError:
        return HTTPStatus.BAD_REQUEST
    if version not in ("HTTP/1.0", "HTTP/1.1") or not target.startswith("/"):
        return HTTPStatus.BAD_REQUEST
    if len(rest) > HEADERS_MAX:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    headers: dict[str, str] = {}
    for line in rest:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not name or name != name.strip() or line[:1] in (b" ", b"\t"):
            return HTTPStatus.BAD_REQUEST
        headers[name.lower()] = value.strip()
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if method not in METHODS:
        return HTTPStatus.METHOD_NOT_ALLOWED
    path, _, query = target.partition("?")
    keeps = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    try:
        fields = dict(parse_qsl(query, max_num_fields=FIELDS_MAX))
    except ValueError:
        return HTTPStatus.BAD_REQUEST
    return Asked(method, unquote(path), fields, headers), keeps
