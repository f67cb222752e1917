"""`/brokers`: who is there, who leads how much, and who is gone. The page renews itself."""

from __future__ import annotations

from starlette.responses import Response

from penstock.console.brokers import seen_brokers
from penstock.console.visit import Visit, page


@page("/brokers")
def brokers(visit: Visit) -> Response:
    found = seen_brokers(visit.cluster)
    return visit.render("brokers.html", brokers=found, gone=[one for one in found if not one.alive])
