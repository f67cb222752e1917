"""Connections of brokers to other brokers: the real link of `broker/peers`, over the simulated network.

The world's loop calls this in place of a socket. Whatever happens to clients' connections happens to these:
they are late, cut off and broken, and die with either end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from penstock.wire.buffers import Buffer
from simulation.loop import CURRENT, Process
from simulation.network import Link, Network, SimulatedServer


class Peering:
    def __init__(self, network: Network) -> None:
        self._network = network

    async def connect(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """As the loop's `create_connection`, for the process whose turn it is."""
        process = CURRENT.get()
        server = await self._network.reach(process, host)
        protocol = protocol_factory()
        link = self._network.add(PeerLink(self._network, process, host, server, protocol))
        protocol.connection_made(link.transport)
        return link.transport, protocol


class PeerLink(Link):
    """One connection, with a protocol of asyncio's at the client's end."""

    def __init__(
        self,
        network: Network,
        client: Process,
        host: str,
        server: SimulatedServer,
        protocol: asyncio.Protocol,
    ) -> None:
        self._protocol = protocol
        super().__init__(network, client, host, server)
        self.transport = _ClientTransport(self)

    def _receive(self, data: bytes | None) -> None:
        if self.over or self.broken:
            return
        if data is None:
            self._end("the broker closed the connection")
        else:
            self._protocol.data_received(data)

    def _end(self, why: str) -> None:
        if not self.over:
            self.over = True
            self.client.post(self._protocol.connection_lost, ConnectionResetError(why))


class _ClientTransport(asyncio.Transport):
    def __init__(self, link: PeerLink) -> None:
        super().__init__()
        self._link = link

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._link.host, 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._link.over

    def write(self, data: Buffer) -> None:
        if not self._link.over:
            self._link.send(bytes(data))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self._link.close()

    abort = close
