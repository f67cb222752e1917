"""A client with a transactional id, as Java's producer is one: it asks, tries again, gives up or begins anew.

    tried again   CONCURRENT_TRANSACTIONS, coordinators that load, moved or are away, leaders that moved, a
                  coordinator that a leader could not ask (NOT_ENOUGH_REPLICAS), and no answer at all
    abortable     a batch that is not in the transaction, or out of order: the client aborts, and takes the
                  next epoch before it goes on
    fatal         the epoch is not the present one, or the state is wrong: it begins anew with InitProducerId

A client of version 1 (EndTxn 4, Produce 11) names partitions before it writes to them. One of version 2
(EndTxn 5, Produce 12) does not, and has the next epoch after each end. In version 1 a request that is still
on its way may hit the next transaction of the same epoch, which is what version 2 is for. So a client of
version 1 takes the next epoch after each request that it got no answer to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from conformance.histories.history import Outcome, Transaction

from penstock.metadata.image import PartitionKey
from penstock.wire.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.api.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ApiMessage
from simulation.client import NO_LEADER, TRANSACTION, Unreachable
from simulation.producers import RETRY_SECONDS, TRY_AGAIN, Batch, Writer
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

INIT_VERSIONS = {1: 3, 2: 5}
ADD_VERSION = 3
END_VERSIONS = {1: 4, 2: 5}
PRODUCE_VERSIONS = {1: 11, 2: 12}
PATIENCE_SECONDS = 6.0
NOBODY = (-1, -1)
"""A client that begins has no producer id and no epoch."""

LOOK_ANEW = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE))
COORDINATOR_AGAIN = LOOK_ANEW | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
PRODUCE_AGAIN = TRY_AGAIN | {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS}
FATAL = frozenset(
    (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
)
ABORTABLE = frozenset(
    (
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    )
)


class Fatal(Exception):
    """This client is not the one that has the id, or does not know how things stand: begin anew."""


class Abortable(Exception):
    """This transaction cannot be committed."""


class Id(NamedTuple):
    """A transactional id, and what may happen to clients that have it."""

    name: str
    version: int
    timeout_ms: int
    shared: bool
    """Several clients have it, and shut each other out."""

    @property
    def is_safe(self) -> bool:
        """Nobody takes it from its client: neither another client nor time."""
        return not self.shared and self.timeout_ms >= TIMEOUT_MS_MAX


LATE_SHARE = 0.03
"""Batches that come after their client gave them up."""
GIVES_UP_SHARE = 0.3
"""Who got no answer aborts, or begins anew, in place of another try."""
TIMEOUT_MS_MAX = 900_000
"""More than all clocks of machines together are wrong by, where they do not jump."""


class Session(Writer):
    def __init__(self, scene: Scene, name: str, id: Id) -> None:
        super().__init__(scene, name)
        self.id = id
        self.producer_id = self.epoch = -1
        self._sequences: dict[PartitionKey, int] = {}
        self.unsure = False
        """A request of this epoch got no answer, and may be carried out at any time."""
        self.added = False
        """The coordinator knows of a partition of the present transaction."""
        self._echoes: set[asyncio.Task[None]] = set()
        self.echoed = False
        """A copy of a request may still be on its way."""

    # Asking the coordinator.

    async def until_answered(self, what: str, ask: Callable[[int], Awaitable[int]]) -> int:
        """Ask the coordinator until it says neither "later" nor "elsewhere". What it refuses is raised."""
        anew = False
        while True:
            try:
                coordinator = await self.coordinator(self.id.name, anew=anew, kind=TRANSACTION)
                if coordinator != NO_LEADER:
                    code = await ask(coordinator)
                    self.note(f"b{coordinator} said {self.code(code)} to {what}")
                    if code not in COORDINATOR_AGAIN:
                        self.judge(code, what, coordinator)
                        return code
                    anew = code in LOOK_ANEW
                else:
                    anew = True
            except Unreachable:
                self.unsure = anew = True
                if self.rng.random() < GIVES_UP_SHARE:
                    raise Fatal(f"no answer to {what}") from None
            await self.pause(RETRY_SECONDS)

    def judge(self, code: int, what: str, by: int) -> None:
        if not code:
            return
        name = self.code(code)
        # A batch waits behind a late copy of an old one that asked before its partition was added.
        stale = code == ErrorCode.TRANSACTION_ABORTABLE and self.echoed and self.id.version == 1
        safe = self.id.is_safe and not self.scene.variety.jumps and not stale
        if (code not in FATAL | ABORTABLE) or safe:
            self.scene.checker.fail("T refused", f"b{by} answered {name} to {what} of {self.name}")
        raise Fatal(name) if code in FATAL else Abortable(name)

    async def initialise(self, *, go_on: bool = False) -> None:
        """Be the one that has the id, with the next epoch. `go_on`: as the one that has it already."""
        given = (self.producer_id, self.epoch) if go_on else NOBODY

        async def ask(coordinator: int) -> int:
            nonlocal given
            request = InitProducerIdRequest(self.id.name, self.id.timeout_ms, *given)
            # A coordinator that took over since does not know this epoch for the one before.
            asked, given = given, NOBODY
            self.note(f"initialise {self.id.name} {asked} at b{coordinator}")
            answer = await self.ask(
                coordinator, request, InitProducerIdResponse, INIT_VERSIONS[self.id.version], PATIENCE_SECONDS
            )
            if not answer.error_code:
                self._is(answer.producer_id, answer.producer_epoch)
            return answer.error_code

        await self.until_answered("InitProducerId", ask)
        self.unsure = False
        self.scene.producer_ids(self.producer_id, self.id.name)

    def _is(self, producer_id: int, epoch: int) -> None:
        self.note(f"is {producer_id} epoch {epoch}")
        self.added = False
        self.producer_id, self.epoch = producer_id, epoch
        self._sequences.clear()

    async def add(self, places: list[tuple[Topic, int]]) -> None:
        """Name the partitions that are about to be written to."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic.name, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name, found) for name, found in by_topic.items()],
        )

        async def ask(coordinator: int) -> int:
            if any(topic.id in self.scene.checker.deleted for topic, _partition in places):
                raise Abortable("its topic was deleted")
            answer = await self.ask(
                coordinator, request, AddPartitionsToTxnResponse, ADD_VERSION, PATIENCE_SECONDS
            )
            told = [
                ((topic.name, one.partition_index), one.partition_error_code)
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            ]
            if sorted(place for place, _code in told) != sorted((one.name, index) for one, index in places):
                self.scene.checker.fail("P5 whole", f"b{coordinator} added {places}: {answer}")
            codes = [code for _place, code in told if code]
            return next(
                (code for code in codes if code != ErrorCode.OPERATION_NOT_ATTEMPTED), max(codes, default=0)
            )

        await self.until_answered("AddPartitionsToTxn", ask)
        self.added = True

    async def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Commit or abort, and note what became of it."""
        notes = self.scene.transactions.notes
        version = END_VERSIONS[self.id.version]
        request = EndTxnRequest(
            transactional_id=self.id.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        what = f"{'commit' if commit else 'abort'} of {transaction.name}"
        attempts = 0
        refused = False
        if commit:
            notes.commit_asked(transaction)

        async def ask(coordinator: int) -> int:
            nonlocal attempts, refused
            attempts += 1
            self.note(f"{what} at b{coordinator}")
            if self.id.version > 1 and self.rng.random() < 0.1:
                self.echo(coordinator, request, EndTxnResponse, version)
            answer = await self.ask(coordinator, request, EndTxnResponse, version, PATIENCE_SECONDS)
            # Other failures may be of a write that is still in doubt.
            refused = answer.error_code in FATAL
            if not answer.error_code and version > END_VERSIONS[1]:
                self._is(answer.producer_id, answer.producer_epoch)
            return answer.error_code

        try:
            await self.until_answered(what, ask)
        except (Fatal, Abortable):
            if refused and attempts == 1:
                transaction.outcome = Outcome.ABORTED
            raise
        self.added = False
        if commit:
            notes.committed(transaction)

    async def abort(self, transaction: Transaction) -> None:
        """After something went wrong. In version 1 the next epoch is for whatever is still on its way. A
        transaction that the coordinator may not know of is ended with its epoch: its end could be refused,
        for the one before may not be over."""
        added = self.added
        if added:
            await self.end(transaction, commit=False)
        if self.id.version == 1 or not added:
            await self.initialise(go_on=self.rng.random() < 0.5)

    # Writing.

    async def send(self, transaction: Transaction, topic: Topic, partition: int, batch: Batch) -> None:
        """Until it is acknowledged."""
        self.scene.transactions.notes.sent(transaction, topic, partition, batch.values)
        anew = False
        late = self.rng.random() < LATE_SHARE
        while True:
            if topic.id in self.scene.checker.deleted:
                raise Abortable("its topic was deleted")
            leader = await self.leader(topic.name, topic.id, partition, anew=anew)
            anew = True
            if leader != NO_LEADER:
                asked_at = self.scene.world.time()
                if late:
                    self.echo(leader, self._request(topic, partition, batch), ProduceResponse, self._version)
                    self.give_up(batch.values[0].decode())
                try:
                    told = await self._produce_once(leader, topic, partition, batch)
                except Unreachable:
                    self.unsure = True
                    if self.rng.random() < GIVES_UP_SHARE:
                        self.give_up(batch.values[0].decode())
                else:
                    if not told.error_code:
                        self.added = True
                        self.acknowledged(topic, partition, batch, told.base_offset, asked_at, leader)
                        notes = self.scene.transactions.notes
                        notes.acknowledged(transaction, batch.values, told.base_offset)
                        return
                    if told.error_code not in PRODUCE_AGAIN:
                        self.judge(told.error_code, f"{batch.values[0]!r}", leader)
                    anew = told.error_code in TRY_AGAIN
            await self.pause(RETRY_SECONDS)

    async def _produce_once(
        self, leader: int, topic: Topic, partition: int, batch: Batch
    ) -> PartitionProduceResponse:
        request = self._request(topic, partition, batch)
        first = batch.values[0].decode()
        self.note(f"send {first} x{len(batch.values)} to b{leader} {topic.name}-{partition}")
        if self.rng.random() < 0.1:
            self.echo(leader, request, ProduceResponse, self._version)
        answer = await self.ask(leader, request, ProduceResponse, self._version, PATIENCE_SECONDS)
        parts = [one for told in answer.responses for one in told.partition_responses]
        if len(answer.responses) != 1 or [one.index for one in parts] != [partition]:
            self.scene.checker.fail("P5 whole", f"b{leader} answered {first}: {answer}")
        self.note(f"b{leader} said {self.code(parts[0].error_code)} at {parts[0].base_offset} of {first}")
        return parts[0]

    @property
    def _version(self) -> int:
        return PRODUCE_VERSIONS[self.id.version]

    def _request(self, topic: Topic, partition: int, batch: Batch) -> ProduceRequest:
        part = PartitionProduceData(index=partition, records=memoryview(batch.data))
        data = TopicProduceData(name=topic.name, topic_id=topic.id, partition_data=[part])
        return ProduceRequest(transactional_id=self.id.name, acks=-1, timeout_ms=30_000, topic_data=[data])

    def give_up(self, what: str) -> NoReturn:
        """Somebody waited long enough; the request is still on its way."""
        self.unsure = True
        raise Abortable(f"{what} is late")

    def next_batch(self, topic: Topic, partition: int, count: int | None = None) -> Batch:
        key = (topic.id, partition)
        sequence = self._sequences.get(key, 0)
        batch = self.batch(
            topic, partition, self.producer_id, self.epoch, sequence, transactional=True, count=count
        )
        self._sequences[key] = sequence + len(batch.values)
        return batch

    def echo(self, broker: int, request: ApiMessage, response: type[ApiMessage], version: int) -> None:
        """The same request comes a second time, late."""
        delay = self.rng.choice((0.0, 0.05, 1.0, 4.0)) * self.rng.random()
        self.echoed = True

        async def again() -> None:
            await asyncio.sleep(delay)
            try:
                await self.ask(broker, request, response, version, PATIENCE_SECONDS)
            except Unreachable:
                return

        task = asyncio.create_task(again())
        self._echoes.add(task)
        task.add_done_callback(self._echoes.discard)
