"""Subscriptions and assignments: the bytes that consumers put inside JoinGroup and SyncGroup."""

from typing import Annotated

from penstock.wire.schema import NEVER_FLEXIBLE, Bytes, Int32, Message, String, TopMessage


class TopicPartition(Message):
    topic: String = ""
    partitions: list[Int32] = []


class ConsumerProtocolSubscription(TopMessage):
    min_version = 0
    max_version = 3
    flexible_from = NEVER_FLEXIBLE

    topics: list[String] = []
    user_data: Bytes | None = None
    owned_partitions: Annotated[list[TopicPartition], "1+", "ignorable"] = []
    generation_id: Annotated[Int32, "2+", "ignorable"] = -1
    rack_id: Annotated[String | None, "3+", "ignorable"] = None


class ConsumerProtocolAssignment(TopMessage):
    min_version = 0
    max_version = 3
    flexible_from = NEVER_FLEXIBLE

    assigned_partitions: list[TopicPartition] = []
    user_data: Bytes | None = None
