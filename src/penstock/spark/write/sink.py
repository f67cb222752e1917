"""`write` and `writeStream.format("penstock")`: tasks encode and stage, the driver commits.

The columns are those of Spark's Kafka sink: value is required; key, topic, partition and headers are used if
they are there. A column `timestamp` is the record's time. Other columns are not written.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

from penstock.arrow.errors import OptionError
from penstock.spark.options import WriteOptions
from penstock.spark.plain import plainly
from penstock.spark.read.schema import TYPES
from penstock.wire.compression import CODEC_NAMES

if TYPE_CHECKING:
    from penstock.spark.write.commits import Committer
    from penstock.spark.write.staging import StagedRun
    from penstock.storage.stores.blocking import BlockingStore

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Names under which Spark tells tasks which query and micro-batch they belong to."""

_ACCEPTED: dict[str, tuple[DataType, ...]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "timestamp": (TimestampType(),),
    "headers": (TYPES["headers"],),
}


class Staged(WriterCommitMessage):
    """The staged output of one task, and its query."""

    def __init__(self, query: str, runs: "Sequence[StagedRun]") -> None:
        self.query = query
        self.runs = runs


def check_schema(schema: StructType, options: WriteOptions) -> None:
    fields = {field.name: field.dataType for field in schema.fields}
    if "value" not in fields:
        raise OptionError("The rows to write have no column 'value'.")
    if options.topic is None and "topic" not in fields:
        raise OptionError("Set the option 'topic', or give the rows a column 'topic'.")
    for name, kinds in _ACCEPTED.items():
        kind = fields.get(name)
        if kind is not None and not any(_alike(kind, one) for one in kinds):
            wanted = " or ".join(one.simpleString() for one in kinds)
            raise OptionError(f"The column {name!r} is to be {wanted}, not {kind.simpleString()}.")


def _alike(kind: DataType, wanted: DataType) -> bool:
    """Whether a type fits, whatever may be null in it."""
    return kind.simpleString() == wanted.simpleString()


def locate(options: WriteOptions) -> str:
    if options.store:
        return options.store
    from penstock.spark.brokers import find_store

    assert options.bootstrap is not None
    return find_store(options.bootstrap, options.security)


def _open(options: WriteOptions) -> "BlockingStore":
    from penstock.arrow.reading import open_blocking

    return open_blocking(locate(options))


def stage_rows(
    batches: Iterator[Any], options: WriteOptions, query: str, batch: int
) -> "tuple[StagedRun, ...]":
    """Encode rows and leave the batches in the store. Runs on executors."""
    from penstock.spark.write.encode import encode_partitions
    from penstock.spark.write.staging import Stage, job_of

    stage = Stage(f"{job_of(query, options.topic)}/{batch}", lambda: _open(options))
    topics = _Topics(options)
    codec = CODEC_NAMES.index(options.codec)
    try:
        for rows in batches:
            for encoded in encode_partitions(
                rows,
                default_topic=options.topic,
                partition_count=topics.partitions,
                keyless=lambda _topic, count: random.randrange(count),
                now_ms=time.time_ns() // 1_000_000,
                codec=codec,
                batch_bytes=topics.batch_bytes,
            ):
                stage.add(encoded.topic, encoded.partition, encoded.records, encoded.data, encoded.traits)
        return stage.finish()
    except BaseException:
        with contextlib.suppress(Exception):
            stage.discard()
        raise


class _Topics:
    """How many partitions topics have, and what they take: from the store, or from a broker that creates a
    missing topic."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._found: dict[str, tuple[int, int]] = {}

    def partitions(self, topic: str) -> int:
        return self._of(topic)[0]

    def batch_bytes(self, topic: str) -> int:
        """How large a batch may be, as far as the store tells. A broker may take less, by a setting that it
        was started with: such batches are parted when they are sent."""
        return self._of(topic)[1]

    def _of(self, topic: str) -> tuple[int, int]:
        found = self._found.get(topic)
        if found is None:
            found = self._found[topic] = self._look(topic)
        return found

    def _look(self, topic: str) -> tuple[int, int]:
        from penstock.arrow.errors import MissingTopicError
        from penstock.arrow.session import reach
        from penstock.client import Client, ClientError
        from penstock.cluster.reading import ImageReader
        from penstock.metadata.image import BROKER_CONFIG, TOPIC_CONFIG
        from penstock.spark.brokers import CONNECT_SECONDS, addresses
        from penstock.spark.write.encode import BATCH_BYTES

        store = _open(self._options)
        image = reach(store.location, lambda: store.run(ImageReader(store.store).refresh()))
        of_all = image.config(BROKER_CONFIG, "").get("message.max.bytes", BATCH_BYTES)
        most = min(BATCH_BYTES, int(image.config(TOPIC_CONFIG, topic).get("max.message.bytes", of_all)))
        found = image.topic(topic)
        if found is not None:
            return len(found.partitions), most
        bootstrap = self._options.bootstrap or addresses(image)
        try:
            if bootstrap:
                with Client(bootstrap, CONNECT_SECONDS, self._options.security) as client:
                    return len(client.partitions(topic, create=True)), most
        except ClientError as error:
            raise MissingTopicError(f"The topic {topic!r} does not exist: {error}") from None
        raise MissingTopicError(f"The topic {topic!r} does not exist.")


def _committer(options: WriteOptions, query: str) -> "Committer":
    from penstock.spark.write.commits import Committer

    return Committer(_open(options), options, query)


def _gather(messages: Sequence[WriterCommitMessage | None]) -> "tuple[str, list[StagedRun]]":
    """The query, and what its tasks staged."""
    staged = [message for message in messages if isinstance(message, Staged)]
    query = staged[0].query if staged else ""
    return query, [run for message in staged for run in message.runs]


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options

    @plainly
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if not query:
            raise RuntimeError("Spark did not say which query this task belongs to")
        return Staged(query, stage_rows(iterator, self._options, query, int(batch or 0)))

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._end(messages, batchId, lambda committer: committer.commit)

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._end(messages, batchId, lambda committer: committer.abort)

    def _end(
        self,
        messages: list[WriterCommitMessage | None],
        batch: int,
        how: "Callable[[Committer], Callable[[int, Sequence[StagedRun]], None]]",
    ) -> None:
        query, runs = _gather(messages)
        if query:
            how(_committer(self._options, query))(batch, runs)


class BatchWriter(DataSourceArrowWriter):
    """A write that is not a stream is one micro-batch of a query of its own."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._query = f"write-{os.urandom(12).hex()}"

    @plainly
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return Staged(self._query, stage_rows(iterator, self._options, self._query, 0))

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        committer = _committer(self._options, self._query)
        committer.commit(0, _gather(messages)[1])
        committer.forget()

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _committer(self._options, self._query).abort(0, _gather(messages)[1])
