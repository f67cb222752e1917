"""AddOffsetsToTxn 0-4: a transaction will commit offsets of a group (KIP-98).

- The partition of `__consumer_offsets` that the group belongs to becomes part of the transaction. Codes are
  those of AddPartitionsToTxn; a fenced epoch is INVALID_PRODUCER_EPOCH in versions 0 and 1.
- The offsets themselves come later, by TxnOffsetCommit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import READ_GROUP, WRITE_TRANSACTION
from penstock.metadata.image import OFFSETS_TOPIC
from penstock.shards.partitioner import partition_of
from penstock.transactions.transaction import Given, Place
from penstock.wire.api.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.transactions.core import Codes
    from penstock.wire.exchange import Request

FENCED_SINCE = 2


async def handle(
    broker: Broker, request: Request, message: AddOffsetsToTxnRequest, permit: Permit
) -> AddOffsetsToTxnResponse:
    refusal = permit.refusal(WRITE_TRANSACTION, message.transactional_id) or permit.refusal(
        READ_GROUP, message.group_id
    )
    if refusal is not None:
        return AddOffsetsToTxnResponse(error_code=refusal)
    place = _place(broker, message.group_id)
    given = Given(message.producer_id, message.producer_epoch)
    codes: Codes | Awaitable[Codes] = broker.services.transactions.add_partitions(
        message.transactional_id, given, (place,), verify_only=False, client_version=0
    )
    code = (codes if isinstance(codes, dict) else await codes)[place]
    if code is ErrorCode.PRODUCER_FENCED and request.api_version < FENCED_SINCE:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=code)


def named(broker: Broker, message: AddOffsetsToTxnRequest, version: int) -> Named:
    return ((OFFSETS_TOPIC, 0),)


def _place(broker: Broker, group_id: str) -> Place:
    """Where the group's offsets are, or will be when the topic is created."""
    topic = broker.image.topics.get(OFFSETS_TOPIC)
    count = broker.settings.offsets_topic_num_partitions if topic is None else len(topic.partitions)
    return Place(OFFSETS_TOPIC, partition_of(group_id, count))
