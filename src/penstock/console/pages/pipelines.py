"""`/pipelines`: Spark pipelines of the cluster, as their own reports and checkpoints in the store tell."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.client import ClientError
from penstock.console.stores import ABSENT, required_store, store_of
from penstock.console.visit import Visit, page

if TYPE_CHECKING:
    from penstock.pipeline.overview import Overview

FRESH_SECONDS = 2.0
"""Runs report every second; a look reads a few small objects for each output."""


@page("/pipelines")
def pipelines(visit: Visit) -> Response:
    location = store_of(visit)
    found: list[Overview] = []
    if location:
        found = visit.cluster.remembered("pipelines", lambda _client: look(location), FRESH_SECONDS)
    return visit.render("pipelines.html", pipelines=found, location=location, absent=ABSENT)


@page("/pipelines/{name:path}")
def pipeline(visit: Visit) -> Response:
    location, name = required_store(visit), visit.argument("name")
    everything: list[Overview] = visit.cluster.remembered(
        "pipelines", lambda _client: look(location), FRESH_SECONDS
    )
    found = next((one for one in everything if one.status.pipeline == name), None)
    if found is None:
        raise HTTPException(404, f"The pipeline {name!r} has never been run on this cluster.")
    return visit.render("pipeline.html", found=found, run=found.status)


def look(location: str) -> list[Overview]:
    """All pipelines that were ever run on this cluster."""
    try:
        from penstock.arrow.errors import SourceError
        from penstock.arrow.reading import open_blocking
        from penstock.pipeline.overview import names, overview
    except ImportError as error:
        raise ClientError(f"Pipelines cannot be read: {error.name} is not installed here.") from None
    from penstock.storage.stores.objects import StoreError

    now_ms = time.time_ns() // 1_000_000
    try:
        store = open_blocking(location)
        found = (overview(store, name, now_ms) for name in names(store))
        return [one for one in found if one is not None]
    except (SourceError, StoreError) as error:
        raise ClientError(f"The store {location} cannot be read: {error}") from None
