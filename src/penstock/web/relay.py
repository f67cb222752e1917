"""The way from a broker's HTTP port to its console, which is a process of its own.

The process is started by the first request that needs it, so a broker whose console nobody looks at pays
nothing. It is a child with low priority: whatever pages do, the broker's loop does not do it. For each
request a pair of sockets is made, and one end is passed to the child. The child ends when its control socket
does, and so with the broker, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.web.frames import packed, read_message, scope_message, with_pairs, write_message
from penstock.web.pages import plain, send_page

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable

log = logging.getLogger(__name__)

START_AGAIN_SECONDS = 1.0
"""A console that cannot start is not tried for every request."""


class Relay:
    """An ASGI application that another process runs."""

    def __init__(self, options: Callable[[], dict[str, Any]], requests_max: int) -> None:
        """`options`: what the console is told when it starts. `requests_max`: at once; the rest of the port's
        connections is for probes and collectors. One address has half of them at most, so that whoever sends
        forms that never end keeps nobody else out."""
        self._options = options
        self._requests_max = requests_max
        self._requests = 0
        self._of_hosts: dict[str, int] = {}
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = asyncio.Lock()
        self._started_at = float("-inf")

    async def __call__(
        self, scope: dict[str, Any], receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        host = scope["client"][0] if scope.get("client") else ""
        of_host = self._of_hosts.get(host, 0)
        if self._requests >= self._requests_max or of_host >= max(1, self._requests_max // 2):
            await send_page(send, plain(503, "Too many pages are open at once: close some of them."))
            return
        self._requests += 1
        self._of_hosts[host] = of_host + 1
        try:
            await self._relay(scope, receive, send)
        finally:
            self._requests -= 1
            self._of_hosts[host] -= 1
            if not self._of_hosts[host]:
                del self._of_hosts[host]

    async def _relay(
        self, scope: dict[str, Any], receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        ours = await self._hand_over()
        if ours is None:
            await send_page(send, plain(503, "The console could not be started: the broker's log says why."))
            return
        reader, writer = await asyncio.open_connection(sock=ours)
        upstream = asyncio.ensure_future(_send_request(scope, receive, writer))
        started = False
        try:
            while True:
                message = await read_message(reader)
                if message is None:
                    break
                await send(with_pairs(message))  # type: ignore[arg-type]
                started = True
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    return
            if not started and not upstream.done():
                await send_page(
                    send, plain(502, "The console ended before it answered: load the page again.")
                )
        finally:
            upstream.cancel()
            writer.close()
            await asyncio.gather(upstream, return_exceptions=True)

    async def _hand_over(self) -> socket.socket | None:
        """Our end of a pair of sockets whose other end the console has; None if there is no console."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            for _attempt in range(2):
                async with self._starting:
                    control = self._control or await self._start()
                if control is None:
                    break
                try:
                    socket.send_fds(control, [b"r"], [theirs.fileno()])
                    return ours
                except OSError:
                    # It ended, or has more waiting than it can take.
                    self._forget()
        ours.close()
        return None

    async def _start(self) -> socket.socket | None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._started_at < START_AGAIN_SECONDS:
            return None
        self._started_at = loop.time()
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.to_thread(_spawn, theirs)
            await asyncio.to_thread(ours.sendall, packed(self._options()))
        except OSError as error:
            log.error("the console could not be started: %s", error)
            ours.close()
            return None
        finally:
            theirs.close()
        ours.setblocking(False)
        self._control = ours
        log.info("the console was started pid=%d", self._process.pid)
        return ours

    def _forget(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    async def close(self) -> None:
        """End the console."""
        control, self._control = self._control, None
        if control is not None:
            control.close()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(_end, process)


async def _send_request(
    scope: dict[str, Any], receive: ASGIReceiveCallable, writer: asyncio.StreamWriter
) -> None:
    """The head, then what comes of the body. The end of this is that the visitor went away."""
    with contextlib.suppress(ConnectionError):
        await write_message(writer, scope_message(scope))
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                writer.close()
                return
            await write_message(writer, message)


def _spawn(control: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.console", str(control.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[control.fileno()],
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(2.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
