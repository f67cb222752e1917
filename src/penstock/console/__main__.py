"""The console of a broker, as a process: `python -m penstock.console FD`, started by `web/relay.py`.

The descriptor is its control socket. On it come the options, and then a socket for each request. When the
control socket ends, so does the broker, and so does this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from typing import Any

import msgspec

from penstock.console.application import Console
from penstock.console.options import ConsoleOptions
from penstock.web.frames import read_message, with_pairs, write_message

log = logging.getLogger(__name__)

NICENESS = 5
"""Brokers come first."""
AT_ONCE = 64
"""Sockets that are taken in one turn."""


class Requests:
    """Runs the application for each socket that comes."""

    def __init__(self, console: Console) -> None:
        self._application = console.application()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.ended = asyncio.Event()

    def take(self, control: socket.socket) -> None:
        try:
            data, descriptors, _flags, _address = socket.recv_fds(control, AT_ONCE, AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            task = asyncio.ensure_future(self._run(socket.socket(fileno=descriptor)))
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if not data:
            asyncio.get_running_loop().remove_reader(control)
            self.ended.set()

    async def _run(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        answered = asyncio.Event()

        async def receive() -> dict[str, Any]:
            message = None if answered.is_set() else await read_message(reader)
            return {"type": "http.disconnect"} if message is None else message

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                answered.set()
            with contextlib.suppress(ConnectionError):  # the visitor went away
                await write_message(writer, message)

        try:
            scope = await read_message(reader)
            if scope is not None:
                scope["client"] = None if scope["client"] is None else tuple(scope["client"])
                scope["server"] = None if scope["server"] is None else tuple(scope["server"])
                scope |= {"asgi": {"version": "3.0", "spec_version": "2.3"}, "state": {}}
                await self._answer(with_pairs(scope), receive, send)
                # The broker closes first: a socket that is closed with something unread in it takes what was
                # written before along.
                while await read_message(reader) is not None:
                    pass
        finally:
            writer.close()

    async def _answer(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        try:
            await self._application(scope, receive, send)
        except Exception as error:
            # A page that failed is in the log already. An error may hold the page itself, with its records
            # and its token, and the loop would write it out whole.
            log.debug("a request ended with %s", type(error).__name__)


async def run(control: socket.socket) -> None:
    options = msgspec.convert(await _options(control), ConsoleOptions)
    console = Console(options)
    requests = Requests(console)
    control.setblocking(False)
    asyncio.get_running_loop().add_reader(control, requests.take, control)
    await requests.ended.wait()
    console.close()


async def _options(control: socket.socket) -> dict[str, Any]:
    """The first message, read without a byte of what follows."""
    control.setblocking(True)
    size = int.from_bytes(control.recv(4, socket.MSG_WAITALL), "big")
    data = control.recv(size, socket.MSG_WAITALL)
    found: dict[str, Any] = msgspec.msgpack.decode(data)
    return found


def main() -> None:
    # The broker says when it is over. A signal to the whole group is for the broker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    asyncio.run(run(socket.socket(fileno=int(sys.argv[1]))))
    # Threads that wait for a broker are not waited for.
    sys.stderr.flush()
    os._exit(0)


main()
