"""Streaming queries on machines that are busy with other things."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.pipeline.errors import no_worker

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

STARTS_MAX = 30


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query and wait until its source has a process.

    Spark gives a Python process ten seconds to come up. A query whose process did not has done nothing yet,
    and is started again; any other end is the caller's to look at.
    """
    for _ in range(STARTS_MAX):
        query = start()
        while query.isActive and query.status["message"].startswith(("Initializing", "Getting offsets")):
            time.sleep(0.02)
        error = None if query.isActive else query.exception()
        if error is None or not no_worker(error):
            return query
    raise AssertionError(f"no Python process came up in {STARTS_MAX} attempts")
