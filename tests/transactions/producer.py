"""A transactional producer, request by request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.broker.context import Broker
from penstock.broker.shards.live import LiveShard
from penstock.testing.waiting import eventually
from penstock.transactions.shard import TransactionShard
from penstock.transactions.transaction import State
from penstock.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.api.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.errors import ErrorCode

Ask = Callable[[Any, type[Any], int], Awaitable[Any]]


class Producer:
    """One transactional id, and the requests of its producer, which go to one broker."""

    def __init__(self, broker: Broker, ask: Ask, name: str) -> None:
        self.broker = broker
        self.ask = ask
        self.name = name
        self.id = self.epoch = -1

    async def begin(self, version: int = 5) -> int:
        await self.ask(
            FindCoordinatorRequest(key_type=1, coordinator_keys=[self.name]), FindCoordinatorResponse, 4
        )
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        answer = await self.ask(request, InitProducerIdResponse, version)
        if answer.error_code == ErrorCode.NONE:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)

    async def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        answer = await self.ask(request, AddPartitionsToTxnResponse, version)
        (one,) = answer.results_by_topic_v3_and_below
        return [result.partition_error_code for result in one.results_by_partition]

    async def end(self, *, commit: bool = True, version: int = 3) -> int:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self.ask(request, EndTxnResponse, version)
        if version >= 5 and answer.error_code == ErrorCode.NONE:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)

    async def live(self) -> LiveShard[TransactionShard]:
        found = await self.broker.services.transactions.found(self.name)
        assert isinstance(found, LiveShard)
        return found

    async def state(self) -> State | None:
        known = (await self.live()).shard.described(self.name)
        return None if known is None else known.state

    async def ended(self, state: State) -> None:
        shard = (await self.live()).shard

        def done() -> bool:
            known = shard.described(self.name)
            return known is not None and known.state is state

        await eventually(done, f"{self.name} is {state.name}")
