"""TxnOffsetCommit 0-5: remember where a group has got to, as part of a transaction.

- The offsets are durable in `__consumer_offsets` when this is answered, and take effect with the marker that
  commits the transaction. Until then OffsetFetch shows the offsets before, or UNSTABLE_OFFSET_COMMIT to
  readers that want stable ones.
- It needs Write on the transactional id, Read on the group and Read on each topic.
- The coordinator of the transaction is asked before the first offsets of a producer's epoch get into a
  partition of `__consumer_offsets`, as for records (`broker.transactions.asking`): up to version 4 whether
  the partition is part of the transaction (AddOffsetsToTxn added it), from version 5 on (KIP-890) it is
  added. Not being part of it is TRANSACTION_ABORTABLE from version 4 on, INVALID_TXN_STATE before; another
  epoch is INVALID_PRODUCER_EPOCH. If another broker does not answer, COORDINATOR_LOAD_IN_PROGRESS tells the
  client to try again.
- From version 3 on (KIP-447) the member is checked if the request names one: ILLEGAL_GENERATION,
  UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID. A stale member epoch (KIP-848) is ILLEGAL_GENERATION here.
- Each partition has its own code: UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED,
  OFFSET_METADATA_TOO_LARGE, or that of the request for all of them.
- Before version 2 a client cannot bear COORDINATOR_LOAD_IN_PROGRESS: it gets COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.groups.offset_items import Codes, merged, without
from penstock.broker.rights import READ_GROUP, READ_TOPIC, WRITE_TRANSACTION
from penstock.broker.shards.live import LiveShard, answered
from penstock.groups.offsets.requests import txn_commit_refused
from penstock.groups.shard import GroupShard
from penstock.log.guards import Guard
from penstock.log.producers import NO_SEQUENCE
from penstock.transactions.admission import denied_offsets, manner_of_offsets
from penstock.transactions.transaction import Given
from penstock.wire.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage
    from penstock.storage.ledger.ledger import Partition
    from penstock.wire.exchange import Request

LOADING_SINCE = 2


async def handle(
    broker: Broker, request: Request, message: TxnOffsetCommitRequest, permit: Permit
) -> TxnOffsetCommitResponse:
    code = permit.refusal(WRITE_TRANSACTION, message.transactional_id) or permit.refusal(
        READ_GROUP, message.group_id
    )
    if code is not None:
        return txn_commit_refused(message, code)
    codes = _refusals(broker.image, message, permit)
    answer = txn_commit_refused(message, ErrorCode.NONE)
    wanted = msgspec.structs.replace(message, topics=without(message.topics, codes)) if codes else message
    found = None
    if any(topic.partitions for topic in wanted.topics):
        found = await _commit(broker, wanted, request.api_version)
    whole = merged(answer, found, codes)
    return _said_of_old(whole) if request.api_version < LOADING_SINCE else whole


refused = txn_commit_refused


def named(_broker: Broker, message: TxnOffsetCommitRequest, version: int) -> Named:
    for topic in message.topics:
        for partition in topic.partitions:
            yield topic.name, partition.partition_index


async def _commit(broker: Broker, message: TxnOffsetCommitRequest, version: int) -> TxnOffsetCommitResponse:
    if not message.group_id:
        return txn_commit_refused(message, ErrorCode.INVALID_GROUP_ID)
    live = await broker.services.groups.found(message.group_id)
    if isinstance(live, ErrorCode):
        return txn_commit_refused(message, live)
    partition = live.partition
    guard: Guard | None = None
    given = Given(message.producer_id, message.producer_epoch)
    if not partition.in_transaction(*given):
        found = await _admitted(broker, message.transactional_id, given, partition, version)
        if isinstance(found, ErrorCode):
            return txn_commit_refused(message, denied_offsets(found, manner_of_offsets(version)))
        guard = found
        now = await broker.services.groups.found(message.group_id)
        if not isinstance(now, LiveShard) or now.partition is not partition:
            # The guard is of a partition that was led here until a moment ago.
            return txn_commit_refused(message, ErrorCode.NOT_COORDINATOR)
        live = now
    answer = live.ask(GroupShard.commit_offsets_in_transaction, message, guard)
    return answered(await answer if isinstance(answer, Awaitable) else answer, TxnOffsetCommitResponse)


async def _admitted(
    broker: Broker, transactional_id: str, given: Given, partition: Partition, version: int
) -> Guard | ErrorCode:
    answer: asyncio.Future[Guard | ErrorCode] = asyncio.get_running_loop().create_future()

    def admitted(found: Guard | ErrorCode) -> None:
        if not answer.done():
            answer.set_result(found)

    broker.services.admission.admit(
        transactional_id, given, manner_of_offsets(version), [(partition, NO_SEQUENCE, admitted)]
    )
    return await answer


def _refusals(image: ClusterImage, message: TxnOffsetCommitRequest, permit: Permit) -> Codes:
    codes: Codes = {}
    for at, topic in enumerate(message.topics):
        found = image.topics.get(topic.name)
        refusal = permit.refusal(READ_TOPIC, topic.name)
        for position, partition in enumerate(topic.partitions):
            if refusal is not None:
                codes[at, position] = refusal
            elif found is None or not 0 <= partition.partition_index < len(found.partitions):
                codes[at, position] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


def _said_of_old(answer: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
    """Versions that know no loading coordinator are told that there is none."""
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                partition.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return answer
