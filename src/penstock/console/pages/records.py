"""`/topics/NAME/records`: look at records, follow the tail, search, and write one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.admin.records import ReaderPositions, Sender
from penstock.client import AnswerError, Client, ClientError
from penstock.console import commands
from penstock.console.addresses import segment
from penstock.console.decoding import WAYS, Shown
from penstock.console.pages.topic import described
from penstock.console.reading import (
    PARTITIONS_MAX,
    Bounds,
    Found,
    WrongStartError,
    bounds,
    read,
    sheet,
    text_of,
)
from penstock.console.searching import FOUND_MAX, Progress, search_for, searched
from penstock.console.visit import Event, Visit, page, stream, whole_number
from penstock.wire.batch import Record
from penstock.wire.errors import ErrorCode

STARTS = (("newest", "newest"), ("oldest", "oldest"), ("offset", "from offset"), ("time", "from time (UTC)"))
COUNTS = (25, 50, 100, 250)
STREAM_SECONDS = 30.0
"""How long a stream waits for a broker that does not answer."""
ROWS_MAX = 100
"""Of the records that come between two messages to a page that follows, the newest are shown."""
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Of the values of these records: of larger ones the page shows fewer."""
PAUSE_SECONDS = 0.3
"""Between two messages with records: a page is drawn so often at most."""


class RowOf:
    """One record as a row of the table."""

    def __init__(self, visit: Visit, found: Found) -> None:
        decoding, way = visit.console.decoding, _way(visit)
        self.command = commands.one_record(visit, found.partition, found.record.offset)
        self.partition = found.partition
        self.record = found.record
        self.state = found.state
        self.key: Shown = decoding.shown(found.record.key, way)
        self.value: Shown = decoding.shown(found.record.value, way)
        self.headers = [(name, decoding.shown(value, way)) for name, value in found.record.headers]


@page("/topics/{name}/records")
def records(visit: Visit) -> Response:
    return _records(visit)


def _records(visit: Visit, problem: str = "", written: dict[str, str] | None = None) -> Response:
    name = visit.argument("name")
    start = visit.query("from", "newest")
    count = visit.number("count", 50, 1, 500)
    search = visit.query("find")

    def ask(client: Client) -> tuple[list[int], Any]:
        partitions = [one.partition_index for one in described(client, name).partitions]
        chosen = _chosen(visit, partitions)
        found = None if search else sheet(client, name, chosen, start, visit.query("at"), count)
        return partitions, found

    status = 400 if problem else 200
    try:
        partitions, found = visit.cluster.ask(ask)
    except WrongStartError as error:
        problem, status, found = str(error), 400, None
        partitions = visit.cluster.ask(
            lambda client: [one.partition_index for one in described(client, name).partitions]
        )
    rows = [] if found is None else [RowOf(visit, one) for one in found.records]
    return visit.render(
        "records.html",
        status,
        name=name,
        partitions=partitions,
        starts=STARTS,
        start=start,
        at=visit.query("at"),
        counts=COUNTS,
        count=count,
        ways=WAYS,
        way=_way(visit),
        rows=rows,
        sheet=found,
        later=text_of(found.later) if found else "",
        earlier=text_of(found.earlier) if found else "",
        problem=problem,
        written=written or {},
        commands=commands.records(visit, start, count, [] if found is None else found.records),
        many=len(partitions) > PARTITIONS_MAX and not visit.query("partition"),
    )


def _chosen(visit: Visit, partitions: list[int]) -> list[int]:
    text = visit.query("partition")
    if not text:
        return partitions[:PARTITIONS_MAX]
    one = whole_number(text)
    if one not in partitions:
        raise WrongStartError(f"The topic has partitions 0 to {len(partitions) - 1}; there is no {text!r}.")
    return [one]


def _way(visit: Visit) -> str:
    way = visit.query("as", "auto")
    return way if way in WAYS else "auto"


def _html(visit: Visit, found: list[Found]) -> str:
    rows = [RowOf(visit, one) for one in found]
    template = visit.console.templates.get_template("record_rows.html")
    return template.render(rows=rows, name=visit.argument("name"))


@page("/topics/{name}/value")
def value(visit: Visit) -> Response:
    """The value of one record as it is: of a large one a page shows the beginning."""
    name = visit.argument("name")
    partition, offset = whole_number(visit.query("partition")), whole_number(visit.query("offset"))
    if partition is None or offset is None:
        raise HTTPException(400, "The address does not say which record: partition and offset are numbers.")

    def ask(client: Client) -> Record | None:
        described(client, name)
        deadline = time.monotonic() + STREAM_SECONDS
        try:
            found = read(client, name, partition, offset, offset + 1, 1, deadline).records
        except AnswerError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return None
        return found[0].record if found else None

    record = visit.cluster.ask(ask)
    if record is None or record.value is None:
        raise HTTPException(404, f"Partition {partition} of {name} has no value at offset {offset}.")
    file = f"{name}-{partition}-{offset}"
    headers = {"content-disposition": f'attachment; filename="{file}"', "cache-control": "no-store"}
    return Response(record.value, media_type="application/octet-stream", headers=headers)


# -- streams ----------------------------------------------------------------------------------------------


@stream("/topics/{name}/tail")
def tail(visit: Visit) -> Iterator[Event | None]:
    """New records as they come, and how many came."""
    name = visit.argument("name")
    with visit.cluster.client(STREAM_SECONDS) as client:
        partitions = [one.partition_index for one in described(client, name).partitions]
        reader = ReaderPositions(client, name, _chosen(visit, partitions), "end", committed=False)
        yield Event("ready", "")
        waiting: list[Found] = []
        count = held = 0
        told_at = time.monotonic()
        for found in reader.records(follow=True, pauses=True):
            if found is not None:
                count += 1
                waiting.append(Found(*found))
                held += len(found[1].value or b"")
                if len(waiting) > 2 * ROWS_MAX or held > WAITING_BYTES_MAX:
                    del waiting[: max(1, len(waiting) - ROWS_MAX)]
                    held = sum(len(one.record.value or b"") for one in waiting)
                continue
            now = time.monotonic()
            if now - told_at < PAUSE_SECONDS:
                continue
            told_at = now
            if waiting:
                yield Event("records", _html(visit, waiting[: -ROWS_MAX - 1 : -1]))
                yield Event("count", str(count))
                waiting, held = [], 0
            else:
                yield None


@stream("/topics/{name}/search")
def search(visit: Visit) -> Iterator[Event | None]:
    """What is found as it is found, and how far the search is."""
    name = visit.argument("name")
    wanted = search_for(visit.query("by", "key"), visit.request.query_params.get("find", ""))
    with visit.cluster.client(STREAM_SECONDS) as client:
        partitions = [one.partition_index for one in described(client, name).partitions]
        limits: Bounds = bounds(client, name, _chosen(visit, partitions))
        began = time.monotonic()
        told_at = 0.0
        waiting: list[Found] = []
        last: Progress | None = None
        for found in searched(client, name, limits, wanted):
            if isinstance(found, Found):
                waiting.append(found)
                continue
            last = found
            if time.monotonic() - told_at < PAUSE_SECONDS:
                continue
            told_at = time.monotonic()
            if waiting:
                yield Event("records", _html(visit, waiting))
                waiting = []
            yield _progress(found, began)
        if waiting:
            yield Event("records", _html(visit, waiting))
        if last is not None:
            yield _progress(last, began)


def _progress(progress: Progress, began: float) -> Event:
    seconds = time.monotonic() - began
    fields = {
        "read": progress.read,
        "total": progress.total,
        "found": progress.found,
        "bytes": progress.bytes,
        "rate": round(progress.read / seconds) if seconds > 0.05 else 0,
        "full": progress.found >= FOUND_MAX,
    }
    return Event("progress", json.dumps(fields))


# -- writing ----------------------------------------------------------------------------------------------


@page("/topics/{name}/records", method="POST")
def write(visit: Visit) -> Response:
    """One record from a form."""
    name, form = visit.argument("name"), visit.form
    try:
        record = _record(form)
        with visit.client() as client:
            partitions = client.partitions(name)
            text = form.get("partition", "").strip()
            chosen = whole_number(text)
            if text and chosen not in partitions:
                raise ClientError(f"The topic has no partition {text!r}.")
            sender = Sender(client, name, partitions, 0, -1)
            sender.send(record, chosen)
            sender.flush()
            ((partition, offset),) = sender.last_offsets.items()
    except ClientError as error:
        return _records(visit, str(error), form)
    where = f"/topics/{segment(name)}/records?from=offset&at={offset}&partition={partition}"
    return visit.done(where, f"Wrote a record to partition {partition} at offset {offset}.")


def _record(form: dict[str, str]) -> Record:
    headers: list[tuple[str, bytes | None]] = []
    for line in form.get("headers", "").splitlines():
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip():
            raise ClientError(f"A header is NAME: VALUE, one a line, not {line!r}.")
        headers.append((name.strip(), value.strip().encode()))
    key = form.get("key", "")
    # Browsers end lines of a form with CR LF, which nobody typed.
    value = form.get("value", "").replace("\r\n", "\n")
    return Record(
        0,
        time.time_ns() // 1_000_000,
        key.encode() if key else None,
        None if form.get("tombstone") else value.encode(),
        tuple(headers),
    )
