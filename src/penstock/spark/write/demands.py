"""What topics demand of records, asked of a broker before anything is decided.

A plan says for good what a micro-batch writes. One that a partition refuses can never be carried out,
whatever becomes of the job that made it. So rows that would be refused fail the micro-batch before it has a
plan: then a job that leaves them out goes on.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from penstock.client import AnswerError, Client
from penstock.metadata.image import TOPIC_CONFIG
from penstock.spark.write.sending import WriteError
from penstock.spark.write.staging import StagedRun, Traits
from penstock.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.wire.errors import ErrorCode

MAX_BYTES, _CLEANUP, _STAMPED = "max.message.bytes", "cleanup.policy", "message.timestamp.type"
_BEFORE, _AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
_NAMES = [MAX_BYTES, _CLEANUP, _STAMPED, _BEFORE, _AFTER]
_SMALL_BYTES = 64 * 1024
"""Rows up to here are taken for granted: no broker is asked because of their size."""


class Demands(NamedTuple):
    """None where there is no such demand."""

    max_bytes: int | None
    compacted: bool
    oldest_ms: int | None
    newest_ms: int | None


def require_acceptable(client: Client, staged: Sequence[StagedRun]) -> None:
    """WriteError if a topic would refuse some of the rows. What is not known is not checked: who may write to
    a topic need not be allowed to see its settings."""
    topics = {run.topic for run in staged if _may_be_minded(run.traits)}
    demands = demands_of(client, topics)
    for run in staged:
        found = demands.get(run.topic)
        if found is not None:
            _require(run, found)


def _may_be_minded(traits: Traits) -> bool:
    return traits.keyless or traits.times_ms is not None or traits.largest_alone > _SMALL_BYTES


def _require(run: StagedRun, demands: Demands) -> None:
    traits = run.traits
    topic = f"Topic {run.topic!r} refuses a row:"
    if demands.max_bytes is not None and traits.largest_alone > demands.max_bytes:
        raise WriteError(
            f"{topic} it takes {traits.largest_alone} bytes, and {MAX_BYTES} is {demands.max_bytes}."
        )
    if demands.compacted and traits.keyless:
        raise WriteError(f"{topic} it has no key, and the topic is compacted.")
    if traits.times_ms is None:
        return
    oldest, newest = traits.times_ms
    if demands.oldest_ms is not None and oldest < demands.oldest_ms:
        raise WriteError(f"{topic} its timestamp, {oldest}, is older than {_BEFORE} allows.")
    if demands.newest_ms is not None and newest > demands.newest_ms:
        raise WriteError(f"{topic} its timestamp, {newest}, is later than {_AFTER} allows.")


def demands_of(client: Client, topics: Collection[str]) -> dict[str, Demands]:
    """What topics demand now, as far as this user may see it."""
    if not topics:
        return {}
    now_ms = time.time_ns() // 1_000_000
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=TOPIC_CONFIG, resource_name=name, configuration_keys=_NAMES)
            for name in sorted(topics)
        ]
    )
    try:
        answer = client.retry(lambda: client.any().ask(request, DescribeConfigsResponse))
    except AnswerError:
        return {}
    return {
        result.resource_name: _demands({one.name: one.value or "" for one in result.configs}, now_ms)
        for result in answer.results
        if result.error_code == ErrorCode.NONE
    }


def _demands(settings: Mapping[str, str], now_ms: int) -> Demands:
    def number(name: str) -> int | None:
        text = settings.get(name, "")
        return int(text) if text.isdigit() else None

    timed = settings.get(_STAMPED) == "CreateTime"
    before, after = number(_BEFORE), number(_AFTER)
    return Demands(
        number(MAX_BYTES),
        "compact" in settings.get(_CLEANUP, ""),
        now_ms - before if timed and before is not None else None,
        now_ms + after if timed and after is not None else None,
    )
