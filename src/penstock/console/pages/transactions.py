"""`/transactions`: who has one, how it stands, those that hang, and the end of these."""

from __future__ import annotations

import time

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.admin.offsets import Place
from penstock.admin.transactions import (
    Listed,
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
from penstock.client import AnswerError, Client, ClientError
from penstock.console.confirming import require_typed
from penstock.console.visit import Visit, page, whole_number
from penstock.wire.api.describe_transactions import TransactionState

SEARCH_SECONDS = 60.0
"""How long one answer may take while all partitions are asked."""
IDLE_MINUTES = 15
"""The longest time-out that brokers allow a transaction by default."""
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


@page("/transactions")
def transactions(visit: Visit) -> Response:
    everything: list[Listed] = visit.cluster.remembered("transactions", list_transactions)
    wanted, state = visit.query("find").lower(), visit.query("state")
    found = [one for one in everything if wanted in one.id.lower() and state in ("", one.state)]
    shown, number, pages = visit.paged(found)
    return visit.render(
        "transactions.html",
        transactions=shown,
        count=len(found),
        total=len(everything),
        states=sorted({one.state for one in everything}),
        state=state,
        pages=pages,
        number=number,
        minutes=IDLE_MINUTES,
    )


@page("/hanging-transactions")
def hanging(visit: Visit) -> Response:
    return _hanging(visit)


def _hanging(visit: Visit, problem: str = "") -> Response:
    topic = visit.query("topic") or None
    minutes = visit.number("minutes", IDLE_MINUTES)
    now_ms = time.time_ns() // 1_000_000
    with visit.cluster.client(SEARCH_SECONDS) as client:
        places: list[Place] = places_of_topic(client, topic, None)
        found = open_transactions(client, places, now_ms - minutes * 60_000)
    return visit.render(
        "hanging.html",
        400 if problem else 200,
        found=[one.producer for one in found if one.state is None],
        partitions=len(places),
        minutes=minutes,
        now_ms=now_ms,
        problem=problem,
    )


@page("/hanging-transactions", method="POST")
def end(visit: Visit) -> Response:
    """Abort one that hangs: looked for again, so that what the page showed long ago harms nobody."""
    form = visit.form
    topic = form.get("topic", "")
    partition, start_offset = (whole_number(form.get(one, "")) for one in ("partition", "start_offset"))
    if partition is None or start_offset is None:
        raise HTTPException(400, "The form does not say which transaction to abort.")
    try:
        require_typed(visit, topic)
        with visit.client() as client:
            place = existing_place(client, topic, partition)
            one = open_transaction(producers(client, [place]), start_offset, None, place)
            require_hanging(client, one)
            abort(client, one)
    except AnswerError:
        raise
    except ClientError as error:
        return _hanging(visit, str(error))
    sentence = (
        f"Aborted the transaction of producer {one.producer_id} that began at offset {start_offset} of "
    )
    return visit.done("/hanging-transactions", f"{sentence}partition {partition} of {topic}.")


@page("/transactions/{id:path}")
def transaction(visit: Visit) -> Response:
    name = visit.argument("id")

    def look(client: Client) -> tuple[TransactionState | None, int]:
        return describe_transaction(client, name), coordinator_id(client, name)

    found, coordinator = visit.cluster.ask(look)
    if found is None:
        raise HTTPException(404, f"There is no transactional id {name!r}.")
    started = found.transaction_start_time_ms
    is_open = found.transaction_state in _OPEN and started >= 0
    return visit.render(
        "transaction.html",
        name=name,
        transaction=found,
        coordinator=coordinator,
        places=sorted(places_of(found)),
        open_seconds=max(0, time.time_ns() // 1_000_000 - started) // 1000 if is_open else None,
    )
