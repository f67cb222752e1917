"""A coordinator of transactions that says what a test wants, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any, NamedTuple

from penstock.metadata.image import TRANSACTIONS_TOPIC
from penstock.transactions.transaction import Given, Place
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig

Codes = dict[Place, ErrorCode]


class Asked(NamedTuple):
    transactional_id: str
    given: Given
    places: tuple[Place, ...]
    verify_only: bool
    client_version: int


class FakeCoordinator:
    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.code = ErrorCode.NONE
        self.codes: dict[Place, ErrorCode] = {}
        """For single places, instead of `code`."""
        self.slow: asyncio.Future[None] | None = None
        """Answers wait for this."""

    @classmethod
    async def on(cls, rig: Rig) -> FakeCoordinator:
        await rig.topic(TRANSACTIONS_TOPIC)
        coordinator = cls()
        rig.broker.services.__dict__["transactions"] = coordinator
        return coordinator

    def add_partitions(
        self,
        transactional_id: str,
        given: Given,
        places: Collection[Place],
        *,
        verify_only: bool,
        client_version: int,
    ) -> Codes | Awaitable[Codes]:
        self.asked.append(Asked(transactional_id, given, tuple(places), verify_only, client_version))
        codes = {place: self.codes.get(place, self.code) for place in places}
        return codes if self.slow is None else self._later(self.slow, codes)

    async def _later(self, slow: asyncio.Future[None], codes: Codes) -> Codes:
        await slow
        return codes

    def hold(self) -> asyncio.Future[None]:
        """From now on answers wait until the future is set."""
        self.slow = asyncio.get_running_loop().create_future()
        return self.slow

    async def stop(self) -> Any: ...
