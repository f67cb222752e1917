"""One connection to another broker: frames go out, and each answer goes to the caller that asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, cast

from penstock.wire.asking import (
    SIZE_BYTES,
    correlation_of_answer,
    correlation_of_request,
    size_of_answer,
    sized,
)
from penstock.wire.errors import WireError

if TYPE_CHECKING:
    from penstock.settings.doors import TlsSettings


class Link(Protocol):
    over: bool
    """It is closed, from here or from there."""

    def ask(self, frame: bytes) -> asyncio.Future[bytes]:
        """Send a request; its answer, or ConnectionError. Who waits no longer cancels it."""

    def close(self) -> None: ...


Dial = Callable[[str, int], Awaitable[Link]]
"""Connect to a host and port. OSError if nobody answers there."""


async def dial(host: str, port: int) -> Link:
    _transport, link = await asyncio.get_running_loop().create_connection(SocketLink, host, port)
    return link


def tls_dial(tls: TlsSettings) -> Dial:
    """Connect by TLS. The files are read for each connection: they may have been replaced."""
    from penstock.tls import TlsError, client_context

    async def dialed(host: str, port: int) -> Link:
        try:
            context = await asyncio.to_thread(client_context, tls)
        except TlsError as error:
            raise ConnectionRefusedError(str(error)) from None
        _transport, link = await asyncio.get_running_loop().create_connection(
            SocketLink, host, port, ssl=context, server_hostname=host
        )
        return link

    return dialed


class SocketLink(asyncio.Protocol):
    """Requests are sent at once, behind those that are not answered yet; answers are told apart by their
    correlation ids."""

    def __init__(self) -> None:
        self.over = False
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def ask(self, frame: bytes) -> asyncio.Future[bytes]:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.over or self._transport is None:
            answer.set_exception(ConnectionResetError("the connection is closed"))
            return answer
        number = correlation_of_request(frame)
        self._waiting[number] = answer
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        self._transport.write(sized(frame))
        return answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end("the connection was closed here")

    # -- called by the loop --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        try:
            while len(received) >= SIZE_BYTES:
                end = SIZE_BYTES + size_of_answer(received)
                if len(received) < end:
                    return
                self._answered(bytes(received[SIZE_BYTES:end]))
                del received[:end]
        except WireError:
            # Nothing that follows could be trusted.
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc is not None else "the broker closed the connection")

    def _answered(self, frame: bytes) -> None:
        # One that is not waited for any more was given up.
        answer = self._waiting.get(correlation_of_answer(frame))
        if answer is not None and not answer.done():
            answer.set_result(frame)

    def _end(self, why: str) -> None:
        self.over = True
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(ConnectionResetError(why))
