"""`/brokers`: who is there, who leads how much, and who is gone. `/brokers/ID`: the settings of one."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.admin.configs import BROKER, describe_configs
from penstock.admin.topics import SET, UNSET, alter_configs
from penstock.client import AnswerError, ClientError
from penstock.console.brokers import seen_brokers
from penstock.console.visit import Visit, page, whole_number
from penstock.wire.api.incremental_alter_configs import AlterableConfig


@page("/brokers")
def brokers(visit: Visit) -> Response:
    found = seen_brokers(visit.cluster)
    return visit.render("brokers.html", brokers=found, gone=[one for one in found if not one.alive])


@page("/brokers/{id}")
def broker(visit: Visit) -> Response:
    return _settings(visit)


def _settings(visit: Visit, problem: str = "", changed: str = "") -> Response:
    id = whole_number(visit.argument("id"))
    found = next((one for one in seen_brokers(visit.cluster) if one.id == id), None)
    if found is None:
        raise HTTPException(404, f"There is no broker {visit.argument('id')!r} in this cluster.")
    settings, untold = [], ""
    try:
        if found.alive:
            settings = visit.cluster.ask(lambda client: describe_configs(client, BROKER, str(found.id)))
    except ClientError as error:
        untold = str(error)
    wanted = visit.query("find").lower()
    own = visit.query("changed") == "1"
    shown = [one for one in settings if wanted in one.name.lower() and not (own and one.source == "default")]
    return visit.render(
        "broker.html",
        400 if problem else 200,
        broker=found,
        settings=shown,
        total=len(settings),
        untold=untold,
        problem=problem,
        changed=changed,
        given=visit.form.get("value", ""),
    )


@page("/brokers/{id}", method="POST")
def change(visit: Visit) -> Response:
    id, setting = whole_number(visit.argument("id")), visit.form.get("name", "")
    if id is None:
        raise HTTPException(404, f"There is no broker {visit.argument('id')!r} in this cluster.")
    unset = visit.form.get("do") == "unset"
    value = visit.form.get("value", "")
    wanted = AlterableConfig(
        name=setting, config_operation=UNSET if unset else SET, value=None if unset else value
    )
    try:
        with visit.client() as client:
            alter_configs(client, str(id), [wanted], False, BROKER)
    except AnswerError as error:
        return _settings(visit, str(error), setting)
    now = "is its own no more" if unset else f"is {value} now"
    return visit.done(f"/brokers/{id}?{urlencode({'find': setting})}", f"{setting} of broker {id} {now}.")
