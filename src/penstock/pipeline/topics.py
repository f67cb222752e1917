"""Topics as outputs: the rows of micro-batches, each once.

This module does not use the sink for streams of `format("penstock")`, for two reasons that are Spark's. Its
interface for sinks in Python takes appended rows only, but an aggregate also tells of changes. And it starts
a process for the commit of each micro-batch, with ten seconds to begin. A write of a batch has neither limit.
It is given the number of the query and of the micro-batch. Tasks stage and the driver commits, as in that
sink. So a micro-batch that is run again finds its plan in the store, and is written once.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.spark.options import WriteOptions, write_options
from penstock.spark.write.sink import Staged, check_schema, locate, stage_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.write.commits import Committer

QUERY_SECONDS = 60
_QUERY, _BATCH = "query", "batch"


class TopicWriter:
    """The function that `foreachBatch` calls for one topic."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self.query: Future[str] = Future()
        """The id of the query, which lives in its checkpoint: known once it has started."""

    def add(self, frame: "DataFrame", batch: int) -> None:
        frame.sparkSession.dataSource.register(TopicSource)
        writer = frame.write.format(TopicSource.name()).mode("append").options(**self._options)
        writer.option(_QUERY, self.query.result(QUERY_SECONDS)).option(_BATCH, str(batch)).save()


class TopicSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock-pipeline"

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        given = {name: value for name, value in self.options.items() if name not in (_QUERY, _BATCH)}
        options = write_options(given)
        check_schema(schema, options)
        return BatchWriter(options, self.options[_QUERY], int(self.options[_BATCH]))


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, query: str, batch: int) -> None:
        self._options = options
        self._query = query
        self._batch = batch

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Staged(self._query, stage_rows(iterator, self._options, self._query, self._batch))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._committer().commit(self._batch, _runs(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._committer().abort(self._batch, _runs(messages))

    def _committer(self) -> "Committer":
        from penstock.arrow.reading import open_blocking
        from penstock.spark.write.commits import Committer

        return Committer(open_blocking(locate(self._options)), self._options, self._query)


def _runs(messages: list[WriterCommitMessage | None]) -> list[Any]:
    return [run for message in messages if isinstance(message, Staged) for run in message.runs]
