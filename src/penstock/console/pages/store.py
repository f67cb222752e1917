"""`/store`: what lies in the store, whether all is there that the cluster needs, and what it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from penstock.admin.stores import audit
from penstock.client import AnswerError, ClientError
from penstock.console.reports import keep, kept
from penstock.console.stores import ABSENT, required_store, store_of
from penstock.console.visit import Visit, page

if TYPE_CHECKING:
    from penstock.cluster.audit import Report

SHOWN_MAX = 20
GIB = 2**30
PRICE = "0.023"
"""Of a GiB for a month, in dollars, as large clouds ask for it in their first regions."""


@page("/store")
def store(visit: Visit) -> Response:
    return _show(visit)


def _show(visit: Visit, problem: str = "") -> Response:
    location = store_of(visit)
    found = kept(visit.cluster, "store")
    report: Report | None = found.report if found is not None else None
    price = _price(visit.query("price", PRICE))
    return visit.render(
        "store.html",
        400 if problem else 200,
        location=location,
        absent=ABSENT,
        found=found,
        report=report,
        kinds=[] if report is None else sorted(report.kinds.items()),
        lists=_lists(report),
        shown=SHOWN_MAX,
        price=price,
        bytes=sum(tally.bytes for tally in report.kinds.values()) if report is not None else 0,
        cost=partial(reckoned, price=price),
        problem=problem,
    )


def _lists(report: Report | None) -> Mapping[str, list[object]]:
    if report is None:
        return {}
    lists = {"orphaned": report.orphaned, "in flight": report.in_flight, "unknown": report.unknown}
    return {title: list(some) for title, some in lists.items() if some}


def reckoned(size: int, price: float) -> str:
    """What so many bytes cost in a month."""
    month = size / GIB * price
    return "< 0.01" if 0 < month < 0.01 else f"{month:,.2f}"


def _price(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 1e6)
    except ValueError:
        return float(PRICE)


@page("/store", method="POST")
def compare(visit: Visit) -> Response:
    began = time.monotonic()
    try:
        report = asyncio.run(audit(required_store(visit)))
    except AnswerError:
        raise
    except ClientError as error:
        return _show(visit, str(error))
    except ModuleNotFoundError as error:  # Windows
        return _show(visit, f"The store cannot be read here: {error.name} is not installed.")
    keep(visit.cluster, "store", report, began)
    missing = len(report.missing)
    plural = "" if missing == 1 else "s"
    sentence = "Everything that the cluster needs is there."
    return visit.done("/store", f"{missing} object{plural} missing." if missing else sentence)
