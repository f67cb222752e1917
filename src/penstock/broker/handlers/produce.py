"""Produce 0-13: append record batches to partitions.

- acks 1 and all (-1) are the same here: the answer is built when the batch is durable in the store. acks 0
  has no answer; if it fails the connection is closed, which makes the client look for the leader again.
  Any other value is INVALID_REQUIRED_ACKS.
- A batch that is not durable when `timeout_ms` (a second at least) are over is REQUEST_TIMED_OUT. It is not
  written after that, unless its write was under way: then it is in doubt, and a producer that sends it again
  is told its offset.
- Each partition that was asked for is answered, with its own code. Where a request names one twice, the
  last one counts, as in Kafka.
- Versions 0 to 2 carry message sets of magic 0 and 1, which are converted to one batch (KIP-98 ended them,
  KIP-896 removed them; older clients still send them). From version 3 each partition has exactly one batch
  of magic 2. zstd from version 7 (KIP-110).
- Record errors and messages from version 8 (KIP-467), the present leader and its address from version 10
  (KIP-951), topic ids from version 13 (KIP-516).
- `broker.produce.checks` has the checks of batches; the log checks sequences and epochs of idempotent
  producers.
- Transactional records need a transactional id in the request (TRANSACTIONAL_ID_AUTHORIZATION_FAILED) and
  one producer (else INVALID_PRODUCER_ID_MAPPING). The first of a producer's epoch in a partition need the
  word of the coordinator (`broker.transactions.asking`): up to version 11 it is asked whether the partition
  is part of the transaction, from version 12 on it adds the partition (KIP-890). The answers by version are
  in `transactions.admission`. A marker that overtakes such records makes them INVALID_TXN_STATE.
- A topic that is not known is looked for in the newest image before the answer says so.

Requests of one connection overlap: the next is taken in while earlier ones wait for their flush. There is one
exception. Expanding a batch may cost much (it is compressed and large, its topic compresses anew or is
compacted, or it is an old message set). `storage.ledger.expanding` does it, and nothing of the connection
overtakes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from penstock.broker.produce.answers import Key, Target
from penstock.broker.produce.checks import INLINE_BYTES, NO_BATCH, Demands, Refused, check, first_batch
from penstock.broker.produce.pending import Accepted, Pending, is_transactional, producer_of
from penstock.broker.produce.route import FLEXIBLE_FROM, TOPIC_IDS_FROM, Route
from penstock.broker.rights import WRITE_TOPIC, WRITE_TRANSACTION
from penstock.broker.topics.names import is_internal
from penstock.wire.api.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.wire.batch import HEADER_SIZE
from penstock.wire.errors import BatchError, ErrorCode
from penstock.wire.varint import unsigned

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage, TopicInfo
    from penstock.storage.ledger.ledger import Partition
    from penstock.wire.exchange import Request

log = logging.getLogger(__name__)

ADMIN_CLIENT_ID = "__admin_client"
"""The one client id that Kafka lets write to internal topics."""
BATCHES_FROM = 3
"""Before it, versions carry message sets of magic 0 and 1."""


class Asked(NamedTuple):
    """One partition of the request. `topic` is None where the cluster has no such topic."""

    target: Target
    topic: TopicInfo | None
    records: memoryview | None


class Unexpanded(NamedTuple):
    """Records that must be expanded before they can be judged, which may cost much."""

    records: memoryview
    judge: Callable[[memoryview, int | None], Accepted | Refused]
    """The verdict on them, in any thread. BatchError(MESSAGE_TOO_LARGE) beyond the limit."""


Judge = Callable[["Partition", Demands, int, memoryview, int | None], Accepted | Refused]

NOTHING = Refused(ErrorCode.NONE)
"""A message set without messages, which old clients may send: answered as appended, at no offset."""


def handle(broker: Broker, request: Request, message: ProduceRequest, permit: Permit) -> Pending:
    asked_for = _asked_for(broker.image, message, request.api_version)
    whole = _whole_refusal(asked_for.values(), message, permit)
    pending = Pending(broker, request, message, {key: asked.target for key, asked in asked_for.items()})
    accepted: dict[Key, Accepted] = {}
    unexpanded: dict[Key, Unexpanded] = {}
    owned = request.owned
    judge = _Judgement(broker, request, message, permit).of
    for key, asked in asked_for.items():
        outcome = whole or judge(asked)
        if isinstance(outcome, Refused):
            pending.outcomes[key] = outcome
        elif isinstance(outcome, Unexpanded):
            unexpanded[key] = outcome if owned else outcome._replace(records=_copied(outcome.records))
        else:
            accepted[key] = outcome
    if not owned:
        for key, one in accepted.items():
            if not isinstance(one.batch, bytearray):
                accepted[key] = one._replace(batch=bytearray(one.batch))
    if unexpanded:
        pending.exclusive = True
        broker.tasks.spawn(_expand(broker, pending, accepted, unexpanded))
        return pending
    if not accepted:
        return pending.finish()
    pending.append_all(accepted)
    if len(asked_for) == 1:
        ((key, asked),) = asked_for.items()
        _remember(broker, request, message, asked, accepted[key], permit)
    return pending


def named(_broker: Broker, message: ProduceRequest, version: int) -> Named:
    for topic in message.topic_data:
        key = topic.topic_id if version >= TOPIC_IDS_FROM else topic.name
        for data in topic.partition_data:
            yield key, data.index


def refused(message: ProduceRequest, code: ErrorCode) -> ProduceResponse | None:
    """The answer that refuses every partition with one code; None where the client waits for none."""
    if message.acks == 0:
        return None
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=one.index, error_code=code, base_offset=-1)
                    for one in topic.partition_data
                ],
            )
            for topic in message.topic_data
        ]
    )


# -- the general way ------------------------------------------------------------------------------------


def _copied(records: memoryview) -> memoryview:
    return memoryview(bytearray(records))


async def _expand(
    broker: Broker, pending: Pending, accepted: dict[Key, Accepted], unexpanded: dict[Key, Unexpanded]
) -> None:
    """Expand and judge these records, then append all. The reply is exclusive, so nothing overtakes."""
    try:
        for key, (records, judge) in unexpanded.items():
            outcome = await broker.ledger.expanders.run(partial(judge, records))
            if isinstance(outcome, Refused):
                pending.outcomes[key] = outcome
            else:
                accepted[key] = outcome
    except asyncio.CancelledError:
        pending.close()
        raise
    except Exception:
        log.exception("expanding a batch failed")
        pending.refuse_all(ErrorCode.UNKNOWN_SERVER_ERROR)
    else:
        pending.append_all(accepted)


def _asked_for(image: ClusterImage, message: ProduceRequest, version: int) -> dict[Key, Asked]:
    """The partitions asked for, in order. Of one that is named twice the last counts."""
    asked_for: dict[Key, Asked] = {}
    for topic_data in message.topic_data:
        name, topic_id = topic_data.name, topic_data.topic_id
        if version >= TOPIC_IDS_FROM:
            topic = image.topic_by_id(topic_id)
            name = topic.name if topic is not None else ""
        else:
            topic = image.topics.get(name)
        for data in topic_data.partition_data:
            records = cast("memoryview | None", data.records)
            key = (topic_id if version >= TOPIC_IDS_FROM else name, data.index)
            asked_for[key] = Asked(Target(name, topic_id, data.index), topic, records)
    return asked_for


def _has_transactional_id(message: ProduceRequest, permit: Permit) -> bool:
    name = message.transactional_id
    return name is not None and permit.allows(WRITE_TRANSACTION, name)


def _whole_refusal(asked_for: Iterable[Asked], message: ProduceRequest, permit: Permit) -> Refused | None:
    """Transactional records without a transactional id, with another's, or of several producers refuse the
    whole request."""
    if _has_transactional_id(message, permit):
        senders = {sender[0] for asked in asked_for if (sender := producer_of(asked.records)) is not None}
        return Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING) if len(senders) > 1 else None
    if any(is_transactional(asked.records) for asked in asked_for):
        return Refused(WRITE_TRANSACTION.code)
    return None


class _Judgement:
    """Accepts or refuses the partitions of one request."""

    __slots__ = ("_acks_are_known", "_broker", "_image", "_is_admin", "_now_ms", "_permit", "_version")

    def __init__(self, broker: Broker, request: Request, message: ProduceRequest, permit: Permit) -> None:
        self._broker = broker
        self._image = broker.image
        self._now_ms = broker.clock.time_ms()
        self._permit = permit
        self._version = request.api_version
        self._acks_are_known = message.acks in (-1, 0, 1)
        self._is_admin = request.client_id == ADMIN_CLIENT_ID

    def of(self, asked: Asked) -> Accepted | Refused | Unexpanded:
        (name, _topic_id, index), topic, records = asked
        if topic is None and self._version >= TOPIC_IDS_FROM:
            return Refused(ErrorCode.UNKNOWN_TOPIC_ID)
        if not self._permit.allows(WRITE_TOPIC, name):
            return Refused(WRITE_TOPIC.code)
        if topic is None or not 0 <= index < len(topic.partitions):
            return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        judge: Judge = _judge_message_set
        if self._version >= BATCHES_FROM:
            first = first_batch(records, self._version)
            if isinstance(first, Refused):
                return first
            judge, records = _judge_batch, first
        if not self._acks_are_known:
            return Refused(ErrorCode.INVALID_REQUIRED_ACKS)
        if is_internal(name) and not self._is_admin:
            return Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
        broker = self._broker
        partition = broker.ledger.partition(topic.id, index)
        if partition is None or partition.closed:
            if partition is not None and judge is _judge_batch and records is not None:
                _give_up(partition, records)  # It may be led here again in a moment.
            refused = broker.ledger.refused(topic.id, index)
            return Refused(ErrorCode.KAFKA_STORAGE_ERROR if refused else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if records is None:
            return NO_BATCH
        demands = broker.services.topic_demands.of(self._image, name)
        try:
            return judge(partition, demands, self._now_ms, records, INLINE_BYTES)
        except BatchError:
            return Unexpanded(records, partial(judge, partition, demands, self._now_ms))


def _give_up(partition: Partition, batch: memoryview) -> None:
    if len(batch) >= HEADER_SIZE:
        partition.give_up(batch)


def _judge_batch(
    partition: Partition, demands: Demands, now_ms: int, batch: memoryview, limit: int | None
) -> Accepted | Refused:
    checked = check(batch, demands, now_ms, limit)
    if isinstance(checked, Refused):
        return checked
    return Accepted(partition, checked, demands, checked is batch and demands.skims)


def _judge_message_set(
    partition: Partition, demands: Demands, now_ms: int, records: memoryview, limit: int | None
) -> Accepted | Refused:
    """What versions 0 to 2 send: messages of magic 0 or 1, in any number, or even a batch of magic 2."""
    from penstock.broker.produce.legacy import converted

    batch = converted(records, demands, limit)
    if batch is None:
        return NOTHING
    if isinstance(batch, Refused):
        return batch
    checked = check(memoryview(batch), demands, now_ms, limit)
    return checked if isinstance(checked, Refused) else Accepted(partition, checked, demands, False)


def _remember(
    broker: Broker,
    request: Request,
    message: ProduceRequest,
    asked: Asked,
    accepted: Accepted,
    permit: Permit,
) -> None:
    """Make a route of this request if the next one may be like it."""
    records = asked.records
    if not accepted.plain or records is None:
        request.session.fast = None
        return
    frame = request.frame
    size = len(records)
    flexible = request.api_version >= FLEXIBLE_FROM
    tail = 3 if flexible else 0
    length_bytes = len(unsigned(size + 1)) if flexible else 4
    at = len(frame) - tail - size - length_bytes
    # The shape is checked, not assumed: a client may send tagged fields, or bytes after the message.
    start = at + length_bytes
    usual = (
        frame[len(frame) - tail :].tobytes() == b"\0" * tail
        and frame[start : start + HEADER_SIZE] == records[:HEADER_SIZE]
    )
    if not usual:
        request.session.fast = None
        return
    known = broker.services.produce_routes.known(broker.image, request, permit, at)
    if known is not None:
        request.session.fast = known.take  # As for each first batch of a transaction.
        return
    request.session.fast = Route(
        broker,
        request,
        permit,
        accepted.partition,
        accepted.demands,
        asked.target.name,
        message.acks,
        message.timeout_ms,
        at,
        transactional=_has_transactional_id(message, permit),
    ).take
