"""What handlers share."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.context import Broker
from tests.broker.rig import Rig


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


class _Placed(asyncio.Task[Any]):
    """A task whose place in a set is the later, the earlier it began."""

    places = itertools.count(1 << 40, -1)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._place = next(self.places)
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._place


async def test_what_a_broker_does_ends_in_the_order_in_which_it_began(rig: Rig) -> None:
    """Not in that of addresses, which differs from run to run."""
    loop = asyncio.get_running_loop()
    ended = []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    loop.set_task_factory(lambda loop, work, **options: _Placed(work, loop=loop, **options))
    for number in range(5):
        rig.broker.tasks.spawn(work(number))
    loop.set_task_factory(None)
    await asyncio.sleep(0)
    await rig.broker.tasks.stop()
    assert ended == [0, 1, 2, 3, 4]
