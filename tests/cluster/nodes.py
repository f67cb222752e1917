"""Whole brokers, several in one process, on one directory: sockets, leases and all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

from penstock.metadata.image import ClusterImage
from penstock.node.node import Node
from penstock.settings import Settings
from penstock.wire.schema import ApiMessage

from ..broker.rig import Rig
from ..clocks import AheadClock

R = TypeVar("R", bound=ApiMessage)

QUICK = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "250",
    "metadata.poll.interval.ms": "20",
    "auto.leader.rebalance.enable": "false",
}


class Nodes:
    def __init__(self, store: Path, **settings: str) -> None:
        self._store = store
        self._settings = QUICK | {name.replace("_", "."): value for name, value in settings.items()}
        self.nodes: dict[int, Node] = {}
        self.runs: dict[int, asyncio.Task[str | None]] = {}

    async def start(self, *brokers: int) -> None:
        for broker in brokers:
            values = {
                "broker.id": str(broker),
                "broker.rack": f"rack-{broker}",
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "store": str(self._store),
            }
            node = Node(Settings().with_values(self._settings | values))
            await node.start()
            self.nodes[broker] = node
            self.runs[broker] = asyncio.ensure_future(node.run())

    async def kill(self, broker: int) -> None:
        """End a broker as if its process had died."""
        self.runs.pop(broker).cancel()
        await self.nodes.pop(broker).kill()

    async def stop(self, broker: int) -> str | None:
        self.nodes.pop(broker).stop()
        return await self.runs.pop(broker)

    async def close(self) -> None:
        for broker in list(self.nodes):
            if self.runs[broker].done():
                self.nodes.pop(broker)
            else:
                await self.kill(broker)

    def image(self, broker: int) -> ClusterImage:
        return self.nodes[broker].broker.image

    async def ask(self, broker: int, message: ApiMessage, response: type[R], version: int) -> R:
        """Send a request to one broker, past its sockets."""
        return await Rig(self.nodes[broker].broker, AheadClock()).ask(message, response, version)
