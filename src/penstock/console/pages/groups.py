"""`/groups` and `/groups/NAME`: where groups stand, how their lag went, and what can be done about it.

A name may have any character, so everything about a group has its one address: `?view=reset` is the form that
moves its offsets, and what a form does stands in its field `action`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.admin import resetting
from penstock.admin.groups import (
    WITHOUT_MEMBERS,
    Group,
    Position,
    delete_group,
    delete_offsets,
    existing_group,
    positions,
)
from penstock.admin.offsets import Offsets, Place, commit, committed
from penstock.admin.standing import Standing
from penstock.client import AnswerError, Client, ClientError
from penstock.console.addresses import segment
from penstock.console.charts import lag_chart
from penstock.console.commands import reset
from penstock.console.confirming import require_typed
from penstock.console.samples import lag_samples
from penstock.console.visit import Visit, page, whole_number

ROWS_MAX = 1000
"""Partitions that are shown; the figures above them count all."""
WAYS = {
    "earliest": "To the first record",
    "latest": "To the end",
    "current": "To where the group stands (to the end where it does not)",
    "offset": "To an offset",
    "shift": "By a number of records, back with a minus",
    "time": "To the first record at or after a time",
    "duration": "To the first record of the last while",
    "plan": "To what a plan says",
}
_SORTS = {
    "name": lambda one: one.name,
    "state": lambda one: one.state,
    "members": lambda one: one.members or 0,
    "lag": lambda one: -1 if one.lag is None else one.lag,
}


@page("/groups")
def groups(visit: Visit) -> Response:
    everything = lag_samples(visit.cluster).visit()
    wanted, state = visit.query("find").lower(), visit.query("state")
    sort = visit.query("sort") if visit.query("sort") in _SORTS else "name"
    down = visit.query("down") == "1"
    found: list[Standing] = [
        one for one in everything if wanted in one.name.lower() and state in ("", one.state)
    ]
    found.sort(key=_SORTS[sort], reverse=down)
    shown, number, pages = visit.paged(found)
    return visit.render(
        "groups.html",
        groups=shown,
        count=len(found),
        total=len(everything),
        states=sorted({one.state for one in everything}),
        state=state,
        pages=pages,
        number=number,
        sort=sort,
        down=down,
    )


@page("/groups/{name:path}")
def group(visit: Visit) -> Response:
    if visit.query("view") == "reset":
        return _reset(visit)
    return _show(visit)


@page("/groups/{name:path}", method="POST")
def change(visit: Visit) -> Response:
    """Do what a form of the page says."""
    name = visit.argument("name")
    action = visit.form.get("action", "")
    here = f"/groups/{segment(name)}"
    try:
        with visit.client() as client:
            if action == "delete":
                require_typed(visit, name)
                delete_group(client, name)
                return visit.done("/groups", f"Deleted group {name} and its committed offsets.")
            if action == "forget":
                return visit.done(here, _forget(visit, client, name))
            if action == "reset":
                return visit.done(here, _commit(visit, client, name))
    except AnswerError:
        raise
    except ClientError as error:
        if action == "reset":
            return _reset(visit, str(error))
        return _show(visit, str(error))
    raise HTTPException(400, "The form does not say what to do.")


def _found(client: Client, name: str) -> tuple[Group, Offsets]:
    try:
        return existing_group(client, name)
    except AnswerError:
        raise
    except ClientError as error:
        if not str(error).startswith("There is no group"):
            raise
        raise HTTPException(404, f"{error} It may have been deleted, or never have committed.") from None


def _show(visit: Visit, problem: str = "") -> Response:
    name = visit.argument("name")

    def look(client: Client) -> tuple[Group, Offsets, list[Position]]:
        found, offsets = _found(client, name)
        return found, offsets, list(positions(client, found, offsets))

    found, offsets, rows = visit.cluster.remembered(("group", name), look)
    samples = lag_samples(visit.cluster)
    samples.visit()
    owned = found.owners()
    topics = sorted({topic for topic, _ in offsets} - {topic for topic, _ in owned})
    lags = [one.lag for one in rows if one.lag is not None]
    return visit.render(
        "group.html",
        400 if problem else 200,
        name=name,
        group=found,
        rows=rows[:ROWS_MAX],
        left_out=max(0, len(rows) - ROWS_MAX),
        partitions=len(rows),
        lag=sum(lags) if lags else None,
        chart=lag_chart(samples.of(name)),
        idle=found.state in WITHOUT_MEMBERS,
        topics=topics,
        problem=problem,
    )


def _forget(visit: Visit, client: Client, name: str) -> str:
    topic = visit.form.get("topic", "")
    require_typed(visit, topic)
    some = sorted(number for at, number in committed(client, name) if at == topic)
    if not some:
        raise ClientError(f"Group {name!r} has no committed offsets in {topic!r}.")
    delete_offsets(client, name, topic, some)
    return f"Group {name} has no committed offsets in {topic} any more."


# -- moving offsets ----------------------------------------------------------------------------------------


def _reset(visit: Visit, problem: str = "") -> Response:
    """The form, and the preview if it was filled in."""
    name = visit.argument("name")
    way = visit.query("way")
    plan: list[tuple[str, int, int | None, int]] = []
    with visit.client() as client:
        found, before = _found(client, name)
        topics = sorted({topic for topic, _ in before})
        try:
            if found.state not in WITHOUT_MEMBERS:
                resetting.require_no_members(client, name)
            if way and not problem:
                after = _planned(client, visit, name, before, topics)
                plan = [(*place, before.get(place), offset) for place, offset in sorted(after.items())]
        except AnswerError:
            raise
        except ClientError as error:
            problem = str(error)
    return visit.render(
        "reset.html",
        400 if problem else 200,
        name=name,
        group=found,
        topics=topics,
        ways=WAYS,
        way=way or "earliest",
        plan=plan,
        moved=sum(was != to for _, _, was, to in plan),
        text=_text(plan),
        command=reset(visit, name) if plan else "",
        problem=problem,
    )


def _planned(
    client: Client, visit: Visit, name: str, before: Mapping[Place, int], topics: Sequence[str]
) -> Offsets:
    way, value = visit.query("way"), visit.query("value")
    if way == "plan":
        return resetting.planned(client, resetting.read_plan(value.splitlines(), name))
    topic = visit.query("topic")
    wanted = resetting.topics_of([topic]) if topic else dict.fromkeys(topics)
    if not wanted:
        raise ClientError("The group has committed nothing yet: name the topic to move it in.")
    places = resetting.places_of(client, wanted)
    return resetting.moved(client, _way(way, value), places, before)


def _way(way: str, value: str) -> resetting.Way:
    """The way that the fields name. A WayError says what is wrong with them."""
    match way:
        case "earliest" | "latest" | "current":
            return resetting.Way(way)
        case "offset" if (offset := whole_number(value)) is not None:
            return resetting.Way("offset", offset=offset)
        case "offset":
            raise resetting.WayError(f"An offset is a number from 0 on, not {value!r}.")
        case "shift" if (count := whole_number(value.removeprefix("-").removeprefix("+"))) is not None:
            return resetting.Way("shift", offset=-count if value.startswith("-") else count)
        case "shift":
            raise resetting.WayError(f"A number of records is such as -100 or 100, not {value!r}.")
        case "time" if value[:1] == "@" and (time_ms := whole_number(value[1:])) is not None:
            return resetting.Way("time", time_ms=time_ms)
        case "time":
            return resetting.Way("time", time_ms=resetting.datetime_ms(value))
        case "duration":
            ago_ms = resetting.duration_ms(value)
            return resetting.Way("time", time_ms=max(0, time.time_ns() // 1_000_000 - ago_ms))
    raise resetting.WayError("Choose a way to move the offsets.")


def _commit(visit: Visit, client: Client, name: str) -> str:
    """Commit what the preview showed, if the group still stands where it stood then."""
    shown = _read(visit.form.get("plan", ""))
    resetting.require_no_members(client, name)
    standing = committed(client, name)
    if any(standing.get(place) != was for place, (was, _to) in shown.items()):
        raise ClientError("The group has committed offsets since the preview: look at it again.")
    after = resetting.planned(client, {place: to for place, (_was, to) in shown.items()})
    commit(client, name, after)
    count = len(after)
    return f"Moved the offsets of {name} in {count} partition{'' if count == 1 else 's'}."


def _text(plan: Sequence[tuple[str, int, int | None, int]]) -> str:
    """A preview as the form sends it: topic, partition, before and after, a line each."""
    return "\n".join(
        f"{topic},{partition},{'' if was is None else was},{to}" for topic, partition, was, to in plan
    )


def _read(text: str) -> dict[Place, tuple[int | None, int]]:
    shown: dict[Place, tuple[int | None, int]] = {}
    for line in text.split():
        fields = line.split(",")
        partition, was, to = map(whole_number, fields[1:]) if len(fields) == 4 else (None, None, None)
        if partition is None or to is None:
            raise ClientError("The preview cannot be read: look at it again.")
        shown[fields[0], partition] = was, to
    if not shown:
        raise ClientError("There is nothing to move: look at the preview again.")
    return shown
