"""What `penstock doctor` asks about transactions: where readers of committed records are held back, and by
whom.

A partition is looked at closely only if its last stable offset is below its high watermark. The high
watermark is asked for first: what lies below it and is not stable afterwards belongs to a transaction that is
open, and not to records that came between the two questions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock.admin.offsets import LATEST, Place, list_offsets
from penstock.admin.records import fetch
from penstock.admin.transactions import open_transactions
from penstock.client import AnswerError, Client, ClientError
from penstock.settings.clients import ClientSecurity
from penstock.wire.api.describe_producers import DescribeProducersRequest
from penstock.wire.api.describe_transactions import DescribeTransactionsRequest
from penstock.wire.api.list_transactions import ListTransactionsRequest
from penstock.wire.batch import iter_batches
from penstock.wire.errors import ErrorCode

MINUTE_MS = 60_000
TIMEOUT_MAX_MS = 15 * MINUTE_MS
"""The longest time-out that brokers allow a transaction by default."""
GRACE_MS = MINUTE_MS
"""How much later than its time-out a transaction may end: coordinators look now and then."""
FETCHES_MAX = 100
"""So far a partition is read behind the beginning of a transaction that hangs."""
_APIS = (DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest)


class Known(NamedTuple):
    """What a coordinator knows of a transaction."""

    id: str
    state: str
    started_ms: int
    timeout_ms: int


class Opened(NamedTuple):
    """A transaction that is open in a partition."""

    producer_id: int
    start_offset: int
    last_timestamp_ms: int
    known: Known | None
    """None: no coordinator knows that the partition is in it."""
    lost_at: int | None = None
    """Of one that nobody knows: the first offset behind its beginning whose record is lost. Compaction, which
    takes records too, does not come so far."""


class Held(NamedTuple):
    """A partition whose readers of committed records are held back."""

    topic: str
    partition: int
    stable: int
    end: int
    opened: Sequence[Opened]
    served: bool = True
    """Whether the cluster can be asked who has the transaction. If not, `opened` is what lies there."""


class Transactions(NamedTuple):
    held: Sequence[Held] = ()
    asked_ms: int = 0
    unknown: str = ""
    """Why it could not be asked."""


def ask_transactions(bootstrap: str, seconds: float, security: ClientSecurity) -> Transactions:
    """Ask a cluster. What goes wrong is part of the answer."""
    now_ms = int(time.time() * 1000)
    try:
        with Client(bootstrap, seconds, security) as client:
            return Transactions(list(_held(client)), now_ms)
    except ClientError as error:
        return Transactions((), now_ms, str(error))


def _held(client: Client) -> Iterator[Held]:
    metadata = client.metadata()
    brokers = {one.node_id for one in metadata.brokers}
    places = [
        (topic.name, one.partition_index)
        for topic in metadata.topics
        if topic.name and not topic.error_code
        for one in topic.partitions
        if one.leader_id in brokers
    ]
    ends = list_offsets(client, places, LATEST)
    stable = list_offsets(client, ends, LATEST, committed=True)
    behind = {place: offset for place, offset in stable.items() if offset < ends[place]}
    if not all(client.any().knows(api.api_key) for api in _APIS):
        for place, offset in behind.items():
            yield Held(*place, offset, ends[place], list(_lying_there(client, place, offset)), served=False)
        return
    opened = _opened(client, behind, ends)
    for place, offset in behind.items():
        yield Held(*place, offset, ends[place], opened.get(place, []))


def _opened(client: Client, behind: Iterable[Place], ends: Mapping[Place, int]) -> dict[Place, list[Opened]]:
    opened: dict[Place, list[Opened]] = {}
    for producer, state in open_transactions(client, behind):
        known, lost_at = None, None
        if state is None:
            lost_at = _lost_at(client, producer.place, producer.start_offset, ends[producer.place])
        else:
            times = (state.transaction_start_time_ms, state.transaction_timeout_ms)
            known = Known(state.transactional_id, state.transaction_state, *times)
        entry = Opened(
            producer.producer_id, producer.start_offset, producer.last_timestamp_ms, known, lost_at
        )
        opened.setdefault(producer.place, []).append(entry)
    return opened


def _lost_at(client: Client, place: Place, start: int, end: int) -> int | None:
    """The first offset from `start` on that has no record to read."""
    position = start
    for _ in range(FETCHES_MAX):
        try:
            data = fetch(client, *place, position, 0)
        except AnswerError as error:
            return position if error.code == ErrorCode.CORRUPT_MESSAGE else None
        before = position
        for _at, header in iter_batches(data.records or b""):
            if header.base_offset > position:
                return position
            position = header.last_offset + 1
        if position >= end or position == before:
            return None
    return None


def _lying_there(client: Client, place: Place, offset: int) -> Iterator[Opened]:
    """The transaction whose first batch lies at an offset."""
    try:
        data = fetch(client, *place, offset, 0)
    except AnswerError:
        return
    for _at, header in iter_batches(data.records or b""):
        if header.last_offset >= offset:
            yield Opened(header.producer_id, header.base_offset, header.max_timestamp, None)
            return


# Judging.


def hanging(seen: Transactions) -> Iterator[str]:
    """Transactions that no coordinator will end."""
    if seen.unknown:
        yield f"Which transactions are open could not be asked: {seen.unknown}"
    for one in seen.held:
        for opened in one.opened:
            if one.served and opened.known is None:
                yield (
                    f"Producer {opened.producer_id} has a transaction open in partition {one.partition} of"
                    f" {one.topic!r} from offset {opened.start_offset} on, and no coordinator knows it: it"
                    " never ends, and readers of committed records wait for ever. This ends it: penstock"
                    f" transactions abort --topic {one.topic} --partition {one.partition}"
                    f" --start-offset {opened.start_offset}{_warning(opened.lost_at)}"
                )


def _warning(lost_at: int | None) -> str:
    if lost_at is None:
        return ""
    return (
        f". But what was at offset {lost_at} is lost, and the marker that ended it may have been there: if it"
        " was committed, aborting it hides its records. If its producer says so, copy them first, with"
        " penstock consume --isolation read_uncommitted."
    )


def standing_still(seen: Transactions, before: Transactions) -> Iterator[str]:
    """Last stable offsets that should have moved by now. A transaction that hangs is told by `hanging`."""
    ends = {(one.topic, one.partition): (one.stable, one.end) for one in before.held}
    for one in seen.held:
        stable, end = ends.get((one.topic, one.partition), (one.stable, one.end))
        if stable != one.stable:
            continue
        reason = _reason(one, seen.asked_ms)
        if reason is not None:
            moves = "which moves on" if one.end > end else "which stands still now"
            yield (
                f"The last stable offset of partition {one.partition} of {one.topic!r} stands at"
                f" {one.stable}, {one.end - one.stable} offsets before the high watermark, {moves}: {reason}."
                " Readers of committed records see nothing of what came since."
            )


def _reason(one: Held, now_ms: int) -> str | None:
    """Why a stable offset that stands still is wrong; None if it is not."""
    if not one.opened:
        return "no producer has a transaction open there" if one.served else None
    first = min(one.opened, key=lambda opened: opened.start_offset)
    if first.known is None:
        open_ms = now_ms - first.last_timestamp_ms
        if one.served or open_ms <= TIMEOUT_MAX_MS:
            return None
        return f"producer {first.producer_id} wrote there {open_ms // MINUTE_MS} minutes ago"
    open_ms = now_ms - first.known.started_ms
    if first.known.started_ms < 0 or open_ms <= first.known.timeout_ms + GRACE_MS:
        return None
    return (
        f"the transaction of {first.known.id!r} is {first.known.state} after {open_ms // MINUTE_MS} minutes,"
        f" and its time-out is {first.known.timeout_ms} ms"
    )
