"""ConsumerGroupHeartbeat 0-1: the one request of members of the consumer protocol (KIP-848).

- Epoch 0 joins, -1 leaves, -2 leaves for a while (static members). From version 1 on the client chooses its
  member id and may subscribe by regular expression: RE2's syntax, matched against whole names, internal
  topics left out; INVALID_REGULAR_EXPRESSION otherwise. It finds only topics that its sender may describe.
- FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID,
  UNSUPPORTED_ASSIGNOR, GROUP_MAX_SIZE_REACHED, GROUP_ID_NOT_FOUND, INVALID_REQUEST, each with a sentence.
- Where Kafka leaves a member in the dark, this tells it: a member that reports other partitions than it has
  is sent its assignment again, a static member that joins again under its own id is let in, a regular
  expression is resolved before the first answer, and a member that waits for the assignment interval
  (KIP-1263) is told to come back when that is over.
- The answer waits for the records it depends on; one that changes nothing writes nothing.
- Racks are kept and shown, and do not decide who gets what.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.groups.requests import client_of
from penstock.broker.rights import DESCRIBE_TOPIC
from penstock.groups.shard import GroupShard
from penstock.wire.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.wire.errors import ErrorCode
    from penstock.wire.exchange import Request


def handle(
    broker: Broker, request: Request, message: ConsumerGroupHeartbeatRequest, permit: Permit
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    if not all(permit.allows(DESCRIBE_TOPIC, topic) for topic in message.subscribed_topic_names or ()):
        return _refused(DESCRIBE_TOPIC.code)
    return broker.services.groups.call(
        message.group_id,
        ConsumerGroupHeartbeatResponse,
        _refused,
        GroupShard.consumer_group_heartbeat,
        message,
        request.api_version,
        client_of(request),
        lambda topic: permit.sees(DESCRIBE_TOPIC, topic),
    )


def _refused(code: ErrorCode) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=code)
