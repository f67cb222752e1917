"""Topics that are told of changes: output modes that Spark's interface for sinks in Python does not know.

It takes appended rows only. So rows are staged by tasks and committed by the driver here as that sink does,
by the same means: a micro-batch that is run again finds its plan in the store, and is written once.
"""

import pickle
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from penstock.spark.commits import Committer
from penstock.spark.options import write_options
from penstock.spark.reading import open_blocking
from penstock.spark.sink import check_schema, locate, stage_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_SECONDS = 60


class TopicUpdates:
    def __init__(self, options: dict[str, str]) -> None:
        self._options = write_options(options)
        self.query: Future[str] = Future()
        """The id of the query, which lives in its checkpoint: known once it has started."""

    def add(self, frame: "DataFrame", batch: int) -> None:
        """What `foreachBatch` calls."""
        options, query = self._options, self.query.result(QUERY_SECONDS)
        check_schema(frame.schema, options)

        def stage(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            runs = stage_rows(batches, options, query, batch)
            yield pa.RecordBatch.from_pydict({"runs": pa.array([pickle.dumps(runs)], pa.binary())})

        rows = frame.mapInArrow(stage, "runs binary").collect()
        staged = [run for row in rows for run in pickle.loads(bytes(row.runs))]
        Committer(open_blocking(locate(options)), options, query).commit(batch, staged)
