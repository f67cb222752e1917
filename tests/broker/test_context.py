"""What handlers share."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.broker.context import Broker


async def test_who_is_cancelled_while_partitions_have_just_been_opened_ends() -> None:
    """A broker that begins anew waits for all that it cancelled."""
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    broker = cast(Broker, SimpleNamespace(ledger=SimpleNamespace(update=lambda _image: opened), image=None))
    waiting = asyncio.create_task(Broker.opened(broker, 60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    opened.set_result(None)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
