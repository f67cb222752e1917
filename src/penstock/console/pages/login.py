"""Login and logout. The cluster judges name and password; the console keeps the client that it let in."""

from __future__ import annotations

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from penstock.client import ClientError
from penstock.console.cluster import Cluster
from penstock.console.guard import way_back
from penstock.console.visit import Visit, page

PREFERRED = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""The first that the cluster offers: SCRAM does not show it the password."""


@page("/login", open=True)
def ask(visit: Visit) -> Response:
    if visit.user is not None or not visit.console.options.mechanisms:
        return RedirectResponse(way_back(visit.query("back", "/")), 303)
    return visit.render("login.html", back=way_back(visit.query("back", "/")), problem="", user="")


@page("/login", method="POST", open=True)
def log_in(visit: Visit) -> Response:
    console = visit.console
    options = console.options
    back = way_back(visit.form.get("back", "/"))
    mechanism = next((one for one in PREFERRED if one in options.mechanisms), None)
    if mechanism is None or options.no_login:
        raise HTTPException(403, options.no_login or "The cluster offers no login with a password.")
    user, password = visit.form.get("user", ""), visit.form.get("password", "")
    problem = "A login needs a name and a password."
    if user and password:
        security = msgspec.structs.replace(
            options.security, mechanism=mechanism, user=user, password=password
        )
        cluster = Cluster(options.bootstrap, security)
        try:
            cluster.metadata()
        except ClientError as error:
            cluster.close()
            problem = str(error)
        else:
            console.sessions.end(visit.name)
            answer = RedirectResponse(back, 303)
            console.remember(answer, visit.request, console.sessions.open(cluster, user))
            return answer
    return visit.render("login.html", 401, back=back, problem=problem, user=user)


@page("/logout", method="POST")
def log_out(visit: Visit) -> Response:
    visit.console.sessions.end(visit.name)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(visit.console.cookie(visit.request, "visit"))
    return answer
