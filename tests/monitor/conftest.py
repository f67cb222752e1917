from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from penstock.node.node import Node
from tests.cluster.nodes import Nodes


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Brokers with an HTTP port."""
    made = Nodes(tmp_path / "store", http_address="127.0.0.1:0")
    yield made
    await made.close()


@pytest.fixture
def start(nodes: Nodes) -> Callable[[], Awaitable[Node]]:
    async def begin() -> Node:
        await nodes.start(1)
        return nodes.nodes[1]

    return begin
