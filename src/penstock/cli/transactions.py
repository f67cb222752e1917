"""`penstock transactions`: list, describe, find those that hang, abort one of these."""

from __future__ import annotations

import time
from typing import Any

import click

from penstock.admin.transactions import (
    NO_TRANSACTION,
    Producer,
    abort,
    coordinator_id,
    describe_transaction,
    existing_place,
    list_transactions,
    open_transaction,
    open_transactions,
    places_of,
    places_of_topic,
    producers,
    require_hanging,
)
from penstock.cli.options import OFFSET, PARTITION, cluster_options, connected
from penstock.cli.output import say, show, wants_json
from penstock.client import ClientError
from penstock.wire.api.describe_transactions import TransactionState

MINUTE_MS = 60_000
OLDER_THAN_MINUTES = 15
"""The longest time-out that brokers allow a transaction by default (transaction.max.timeout.ms)."""


@click.group()
def transactions() -> None:
    """Look at transactions, find those that hang, and abort these.

    \b
    penstock transactions list --state Ongoing
    penstock transactions describe ID
    penstock transactions find-hanging
    penstock transactions abort --topic orders --partition 3 --start-offset 4711
    """


@transactions.command("list")
@cluster_options
@click.option("--state", "states", multiple=True,
              help="Only this state, such as Ongoing or CompleteCommit; may be repeated.")  # fmt: skip
@click.option("--producer-id", "producer_ids", type=OFFSET, multiple=True,
              help="Only the id that this producer writes with; may be repeated.")  # fmt: skip
@click.option("--longer-than", metavar="MS", type=click.IntRange(min=0), default=None,
              help="Only transactions that have been open for longer.")  # fmt: skip
@click.option("--pattern", help="Only ids that match this regular expression.")
def list_command(
    bootstrap: str,
    as_json: bool,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than: int | None,
    pattern: str | None,
) -> None:
    """List the transactional ids of the cluster, and the state of each.

    \b
    penstock transactions list
    penstock transactions list --state Ongoing --longer-than 60000
    """
    with connected(bootstrap) as client:
        duration = -1 if longer_than is None else longer_than
        found = list_transactions(
            client, states=states, producer_ids=producer_ids, duration_ms=duration, pattern=pattern
        )
    rows = [
        {"id": one.id, "coordinator": one.coordinator, "producer_id": one.producer_id, "state": one.state}
        for one in found
    ]
    columns = {"id": "ID", "coordinator": "COORDINATOR", "producer_id": "PRODUCER", "state": "STATE"}
    show(rows, columns, as_json=wants_json(as_json))


@transactions.command("describe")
@cluster_options
@click.argument("transaction", metavar="ID")
def describe(bootstrap: str, as_json: bool, transaction: str) -> None:
    """Show the transaction of a transactional ID: its state, its producer, its partitions.

    \b
    penstock transactions describe payments-1
    """
    with connected(bootstrap) as client:
        found = describe_transaction(client, transaction)
        if found is None:
            raise ClientError(f"There is no transactional id {transaction!r}.")
        row = _description(found, coordinator_id(client, transaction), _now_ms())
    if wants_json(as_json):
        show([row], {}, as_json=True)
        return
    click.echo(f"{transaction}: {row['state']}, coordinated by broker {row['coordinator']}")
    click.echo(
        f"producer {row['producer_id']}, epoch {row['producer_epoch']}, time-out {row['timeout_ms']} ms"
    )
    if row["open_ms"] is not None:
        click.echo(f"open for {row['open_ms']} ms")
    show(row["partitions"], {"topic": "TOPIC", "partition": "PARTITION"}, as_json=False)


@transactions.command("producers")
@cluster_options
@click.argument("topic")
@click.argument("partition", type=PARTITION)
def producers_command(bootstrap: str, as_json: bool, topic: str, partition: int) -> None:
    """Show the producers that a PARTITION of TOPIC remembers, and where their transactions begin.

    \b
    penstock transactions producers orders 3
    """
    with connected(bootstrap) as client:
        found = producers(client, [existing_place(client, topic, partition)])
    columns = {**_COLUMNS, "last_sequence": "SEQUENCE"}
    show([_row(one, _now_ms()) for one in found], columns, as_json=wants_json(as_json))


@transactions.command("find-hanging")
@cluster_options
@click.option("--topic", help="Only in this topic.")
@click.option("--partition", type=PARTITION, help="Only in this partition of the topic.")
@click.option("--older-than", metavar="MINUTES", type=click.IntRange(min=0), default=OLDER_THAN_MINUTES,
              show_default=True, help="Only transactions whose last record is older.")  # fmt: skip
def find_hanging_command(
    bootstrap: str, as_json: bool, topic: str | None, partition: int | None, older_than: int
) -> None:
    """Find transactions that no coordinator will end: readers of committed records wait for them for ever.

    A partition has records of such a transaction, and the transaction's coordinator does not know it. What
    is found can be ended with `penstock transactions abort`.

    \b
    penstock transactions find-hanging
    penstock transactions find-hanging --topic orders --older-than 1
    """
    if partition is not None and topic is None:
        raise click.UsageError("--partition is one of a --topic.")
    with connected(bootstrap) as client:
        now_ms = _now_ms()
        places = places_of_topic(client, topic, partition)
        found = open_transactions(client, places, now_ms - older_than * MINUTE_MS)
    rows = [_row(one.producer, now_ms) for one in found if one.state is None]
    show(rows, _COLUMNS, as_json=wants_json(as_json))


@transactions.command("abort")
@cluster_options
@click.option("--topic", required=True)
@click.option("--partition", type=PARTITION, required=True)
@click.option("--start-offset", type=OFFSET, help="Where the transaction begins in the partition.")
@click.option("--producer-id", type=OFFSET, help="The producer whose transaction it is.")
@click.option("--force", is_flag=True,
              help="Also if its coordinator knows it. Its other partitions are not touched.")  # fmt: skip
def abort_command(
    bootstrap: str,
    as_json: bool,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    force: bool,
) -> None:
    """Abort a transaction that hangs in a partition: its leader writes the marker that no coordinator will.

    `find-hanging` says what to give: where the transaction begins, or its producer.

    \b
    penstock transactions abort --topic orders --partition 3 --start-offset 4711
    penstock transactions abort --topic orders --partition 3 --producer-id 1002
    """
    if start_offset is None and producer_id is None:
        raise click.UsageError("Give --start-offset or --producer-id.")
    with connected(bootstrap) as client:
        place = existing_place(client, topic, partition)
        one = open_transaction(producers(client, [place]), start_offset, producer_id, place)
        if not force:
            require_hanging(client, one)
        abort(client, one)
    fields = {
        "aborted": {"topic": topic, "partition": partition, "start_offset": one.start_offset},
        "producer_id": one.producer_id,
        "producer_epoch": one.epoch,
    }
    sentence = (
        f"Aborted the transaction of producer {one.producer_id} that began at offset {one.start_offset}"
        f" of partition {partition} of {topic}."
    )
    say(sentence, fields, as_json=wants_json(as_json))


# -- rows --------------------------------------------------------------------------------------------------

_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "producer_id": "PRODUCER",
    "producer_epoch": "EPOCH",
    "coordinator_epoch": "COORDINATOR EPOCH",
    "start_offset": "START",
    "last_timestamp_ms": "LAST RECORD",
    "idle_minutes": "IDLE MINUTES",
}


def _row(one: Producer, now_ms: int) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "producer_id": one.producer_id,
        "producer_epoch": one.epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "last_sequence": one.last_sequence,
        "start_offset": None if one.start_offset == NO_TRANSACTION else one.start_offset,
        "last_timestamp_ms": one.last_timestamp_ms,
        "idle_minutes": max(0, now_ms - one.last_timestamp_ms) // MINUTE_MS,
    }


def _description(state: TransactionState, coordinator: int, now_ms: int) -> dict[str, Any]:
    started = state.transaction_start_time_ms
    is_open = state.transaction_state in ("Ongoing", "PrepareCommit", "PrepareAbort") and started >= 0
    return {
        "id": state.transactional_id,
        "coordinator": coordinator,
        "state": state.transaction_state,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "timeout_ms": state.transaction_timeout_ms,
        "started_ms": started if is_open else None,
        "open_ms": max(0, now_ms - started) if is_open else None,
        "partitions": [
            {"topic": topic, "partition": partition} for topic, partition in sorted(places_of(state))
        ],
    }


def _now_ms() -> int:
    return int(time.time() * 1000)
