"""The console in a process of its own, at an address of its own."""

from __future__ import annotations

import asyncio
import signal

from penstock.client import ClientError
from penstock.console.application import Console
from penstock.console.options import ConsoleOptions
from penstock.pipeline.errors import PipelineError
from penstock.server.server import ListenError
from penstock.settings.http import parse_http_address
from penstock.tls import TlsError
from penstock.web.server import HttpServer, https_certificates


async def serve(options: ConsoleOptions, listen: str, tls: str | None, connections_max: int) -> None:
    """Serve until a signal. ClientError says why it cannot."""
    try:
        console = Console(options)
        certificates = None if tls is None else await asyncio.to_thread(https_certificates, tls)
        server = HttpServer(console.application(), connections_max, certificates, "--listen")  # type: ignore[arg-type]
        host, port = parse_http_address(listen)
        port = server.bind(host, port)
        await server.start()
    except (ListenError, PipelineError, TlsError) as error:
        raise ClientError(str(error)) from None
    ended = asyncio.Event()
    _end_by_signals(ended)
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    print(f"penstock console is at {'http' if tls is None else 'https'}://{shown}", flush=True)
    try:
        await ended.wait()
    finally:
        await server.close()
        console.close()


def _end_by_signals(ended: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, ended.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(ended.set))
