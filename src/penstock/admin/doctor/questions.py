"""The questions of `penstock doctor`: every broker that any broker names gets the same ones."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock.admin.doctor.transactions import Transactions, ask_transactions
from penstock.client import ClientError, Connection
from penstock.settings.clients import OPEN_CLIENT, ClientSecurity
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from penstock.wire.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

ANSWER_SECONDS = 10.0
GROUPS_ASKED = 60
PARTITIONS_ASKED_MAX = 200
ASKED_AT_ONCE_MAX = 32
_LAST_VERSION_WITH_NAMES = 9

Address = tuple[str, int]


class Coordinator(NamedTuple):
    error: int
    node_id: int
    address: Address


class Opinion(NamedTuple):
    """The answers of one broker."""

    metadata: MetadataResponse
    coordinators: Mapping[str, Coordinator]
    """By group."""
    offsets: Mapping[tuple[str, int], tuple[int, int]] | None
    """Error and committed offset of a group that nobody ever used; None if it does not coordinate that."""
    asked: Sequence[tuple[str, int]]


class Picture(NamedTuple):
    """The answers of all brokers, by address."""

    opinions: Mapping[Address, Opinion]
    silent: Mapping[Address, str]
    """Those that did not answer, with the reason."""
    transactions: Transactions = Transactions()
    earlier: Transactions = Transactions()
    """As they were at the look before this one."""


def text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def gather(bootstrap: Sequence[Address], security: ClientSecurity = OPEN_CLIENT) -> Picture:
    """Ask these brokers, and every broker that any of them names, until nobody names a new one."""
    opinions: dict[Address, Opinion] = {}
    silent: dict[Address, str] = {}
    groups = [f"penstock-doctor-{uuid.uuid4().hex}" for _ in range(GROUPS_ASKED)]
    ask_next = list(dict.fromkeys(bootstrap))
    with ThreadPoolExecutor(ASKED_AT_ONCE_MAX) as pool:
        while ask_next:
            for address, answer in zip(
                ask_next, pool.map(lambda one: _opinion(one, groups, security), ask_next), strict=True
            ):
                if isinstance(answer, str):
                    silent[address] = answer
                else:
                    opinions[address] = answer
            named = {where for one in opinions.values() for where in listed(one.metadata).values()}
            ask_next = sorted(named - opinions.keys() - silent.keys())
    transactions = Transactions()
    if opinions:
        transactions = ask_transactions(text(min(opinions)), ANSWER_SECONDS, security)
    return Picture(opinions, silent, transactions)


def _opinion(address: Address, groups: Sequence[str], security: ClientSecurity) -> Opinion | str:
    try:
        with contextlib.closing(Connection(*address, ANSWER_SECONDS, security)) as connection:
            metadata = connection.ask(MetadataRequest(topics=None), MetadataResponse, seconds=ANSWER_SECONDS)
            found = _ask_coordinators(connection, groups)
            asked = _some_partitions(metadata.topics)
            own = listed(metadata)
            mine = next(
                (group for group, one in found.items() if not one.error and own.get(one.node_id) == address),
                None,
            )
            offsets = None if mine is None else _unused_offsets(connection, mine, asked)
            return Opinion(metadata, found, offsets, asked)
    except ClientError as error:
        return str(error)


def _ask_coordinators(connection: Connection, groups: Sequence[str]) -> dict[str, Coordinator]:
    if connection.version_of(FindCoordinatorRequest()) < 4:
        found = {}
        for group in groups:
            one = connection.ask(
                FindCoordinatorRequest(key=group), FindCoordinatorResponse, seconds=ANSWER_SECONDS
            )
            found[group] = Coordinator(one.error_code, one.node_id, (one.host, one.port))
        return found
    request = FindCoordinatorRequest(coordinator_keys=list(groups))
    answer = connection.ask(request, FindCoordinatorResponse, seconds=ANSWER_SECONDS)
    return {
        one.key: Coordinator(one.error_code, one.node_id, (one.host, one.port)) for one in answer.coordinators
    }


def _some_partitions(topics: Sequence[MetadataResponseTopic]) -> list[tuple[str, int]]:
    everything = [
        (topic.name, one.partition_index) for topic in topics if topic.name for one in topic.partitions
    ]
    return sorted(everything)[:PARTITIONS_ASKED_MAX]


def _unused_offsets(
    connection: Connection, group: str, asked: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    by_topic: dict[str, list[int]] = {}
    for name, index in asked:
        by_topic.setdefault(name, []).append(index)
    request = OffsetFetchRequest(
        group_id=group,
        topics=[
            OffsetFetchRequestTopic(name=name, partition_indexes=some) for name, some in by_topic.items()
        ],
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=[
                    OffsetFetchRequestTopics(name=name, partition_indexes=some)
                    for name, some in by_topic.items()
                ],
            )
        ],
    )
    if min(connection.version_of(request), _LAST_VERSION_WITH_NAMES) < 8:
        request.groups = []
        old = connection.ask(
            request, OffsetFetchResponse, seconds=ANSWER_SECONDS, newest=_LAST_VERSION_WITH_NAMES
        )
        return {
            (topic.name, one.partition_index): (one.error_code or old.error_code, one.committed_offset)
            for topic in old.topics
            for one in topic.partitions
        }
    request.group_id, request.topics = "", []
    answer = connection.ask(
        request, OffsetFetchResponse, seconds=ANSWER_SECONDS, newest=_LAST_VERSION_WITH_NAMES
    )
    return {
        (topic.name, one.partition_index): (one.error_code or found.error_code, one.committed_offset)
        for found in answer.groups
        for topic in found.topics
        for one in topic.partitions
    }


def listed(metadata: MetadataResponse) -> dict[int, Address]:
    """The brokers of an answer."""
    return {one.node_id: (one.host, one.port) for one in metadata.brokers}
