"""The partitions of a commit of offsets: some are refused before the group is asked, all are answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from penstock.wire.api.offset_commit import OffsetCommitRequestTopic, OffsetCommitResponse
from penstock.wire.api.txn_offset_commit import TxnOffsetCommitRequestTopic, TxnOffsetCommitResponse
from penstock.wire.errors import ErrorCode

Codes = dict[tuple[int, int], ErrorCode]
"""By position of the topic and of the partition in the request: what is refused before the group is asked."""

T = TypeVar("T", OffsetCommitRequestTopic, TxnOffsetCommitRequestTopic)
R = TypeVar("R", OffsetCommitResponse, TxnOffsetCommitResponse)


def without(topics: Iterable[T], codes: Codes) -> list[T]:
    """The topics with the partitions that are not refused."""
    return [
        msgspec.structs.replace(
            topic,
            partitions=[p for position, p in enumerate(topic.partitions) if (at, position) not in codes],
        )
        for at, topic in enumerate(topics)
    ]


def merged(whole: R, found: R | None, codes: Codes) -> R:
    """Every partition that was asked for, in its place. `found`: what the group said of the others."""
    for at, topic in enumerate(whole.topics):
        answered = iter(found.topics[at].partitions if found is not None else ())
        for position, partition in enumerate(topic.partitions):
            code = codes.get((at, position))
            partition.error_code = next(answered).error_code if code is None else code
    return whole
