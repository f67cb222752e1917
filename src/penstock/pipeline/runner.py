"""Runs a pipeline: a streaming query for each output, and one for the dead letters of each source.

Each query has its own checkpoint, so each goes on from its own position, whatever became of the others. Each
writes exactly once, because its sink recognises a micro-batch that it has seen. Dead letters have a query of
their own and are no by-product of outputs: a bad record is reported once, even if three outputs read it.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from penstock.arrow.errors import SourceError
from penstock.client import AnswerError, Client, ClientError
from penstock.pipeline import status as statuses
from penstock.pipeline.claims import Claim, take
from penstock.pipeline.definition import Output, Pipeline, Source, Table, Topic
from penstock.pipeline.errors import PipelineError, no_worker, sentence
from penstock.pipeline.frames import changed, dead, good, result, stream
from penstock.pipeline.session import close_session, open_session, require_spark, settings_of
from penstock.pipeline.status import OutputStatus, Status
from penstock.settings.clients import client_security
from penstock.spark.write.demands import MAX_BYTES, demands_of
from penstock.storage.stores.objects import StoreError
from penstock.wire.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipeline.iceberg import IcebergTable
    from penstock.spark.tables.places import Place
    from penstock.storage.stores.blocking import BlockingStore

REPORT_SECONDS = 1.0
NEXT_SECONDS = 0.2
"""Between looks whether a query has ended that others wait for."""
CONNECT_SECONDS = 10.0
STARTS_MAX = 10
WORKER_SECONDS = 30.0
LETTER_BYTES = 64 * 1024
"""For the headers of a dead letter, beyond what its topic took."""
ROWS = "penstock_rows"
"""The name under which Spark tells how many rows an output had."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str | None
    store: str
    file: str
    location: str
    master: str = "local[*]"
    once: bool = False
    interval: str = "1 second"
    settings: dict[str, str] = {}
    properties: dict[str, str] = {}
    """How brokers are reached, by the names of Kafka's clients. There are secrets among them."""

    def __repr__(self) -> str:
        return f"RunOptions(file={self.file!r}, store={self.store!r}, bootstrap={self.bootstrap!r})"

    def to_brokers(self) -> dict[str, str]:
        """Options of Spark's sources and sinks, which put `kafka.` before those names."""
        given = {
            f"kafka.{name}": text for name, text in self.properties.items() if name != "bootstrap.servers"
        }
        if self.bootstrap:
            given["kafka.bootstrap.servers"] = self.bootstrap
        return given


class Running(msgspec.Struct):
    """One query, and the reports about it."""

    status: OutputStatus
    start: Callable[[], Any]
    query: Any
    seen: set[int]
    """Micro-batches that were counted."""
    starts: int = 1


def default_location(store: str) -> str:
    """Where tables and checkpoints are unless somebody says otherwise: on the store, where the log is."""
    if store.startswith("s3://"):
        store = store.replace("s3://", "s3a://", 1)
    elif "://" in store and not store.startswith("file://"):
        raise PipelineError(
            f"Say with --location where tables and checkpoints go: Spark has no access of its own to {store}."
        )
    return f"{store.rstrip('/')}/pipelines"


class Run:
    """One run of a pipeline, from the check of what it needs to its last word."""

    def __init__(self, pipeline: Pipeline, options: RunOptions, store: "BlockingStore") -> None:
        self._pipeline = pipeline
        self._options = options
        self._store = store
        self._home = f"{options.location}/{pipeline.name}"
        self._running: list[Running] = []
        self._waiting: list[tuple[OutputStatus, Callable[[], Any]]] = []
        self._open_tables: list[IcebergTable] = []
        self._stopping = threading.Event()
        self._claim: Claim | None = None
        now_ms = _now_ms()
        self.status = Status(
            pipeline=pipeline.name,
            run=uuid4().hex,
            state="starting",
            file=options.file,
            host=socket.gethostname(),
            pid=os.getpid(),
            process_started=statuses.process_started(os.getpid()),
            master=options.master,
            once=options.once,
            location=options.location,
            started_ms=now_ms,
            reported_ms=now_ms,
        )
        self.log = _log_path(self._home)

    def stop(self) -> None:
        """From a signal or another thread: finish what is under way, and end."""
        self._stopping.set()

    def go(self, show: Callable[[Status], None], spark: "SparkSession | None" = None) -> Status:
        """Run to the end, or until stopped. `show` is called about every second. Raises PipelineError.

        In the given session, or in one of its own.
        """
        require_spark()
        from py4j.protocol import Py4JError, Py4JJavaError

        self._claim = take(self._store, self.status, _now_ms())
        try:
            with _signals(_interrupt):
                self._prepare_topics()
                self._report(show)
                session = spark or self._open()
            try:
                with _signals(_interrupt):
                    self._start(session)
                self._follow(show)
            except Py4JJavaError as error:
                raise PipelineError(sentence(error)) from None
            except (Py4JError, ConnectionError):
                # Java that is killed within a call answers it with nothing, and later calls not at all.
                if not self._stopping.is_set():
                    raise PipelineError(f"Spark has ended; its log is {self.log}.") from None
                self.status.state = "stopped"  # Who stopped us, stopped it as well.
            finally:
                self._end_queries()
                if spark is None:
                    close_session(session, self.log)
        except PipelineError as error:
            self.status.state, self.status.error = "failed", str(error)
            raise
        except StoreError as error:
            self.status.state, self.status.error = "failed", f"The store cannot be used: {error}."
            raise PipelineError(self.status.error) from None
        except KeyboardInterrupt:
            self.status.state = "stopped"  # Before there was anything to stop.
        except BaseException as error:
            self.status.state, self.status.error = "failed", f"{type(error).__name__}: {error}"
            raise
        finally:
            with contextlib.suppress(Exception):
                self._report(show)
        return self.status

    # Before it starts.

    def _prepare_topics(self) -> None:
        """What is read must exist; what is written to is created."""
        wanted: dict[str, tuple[int | None, str]] = {}
        made = set()
        for output in self._pipeline.outputs.values():
            if isinstance(output.target, Topic):
                wanted[output.target.topic] = (output.target.partitions, output.sources[0].topics[0])
                made.add(output.target.topic)
        dead = {
            source.dead_letters: source
            for source in self._pipeline.sources
            if source.dead_letters is not None
        }
        for topic, source in dead.items():
            wanted.setdefault(topic, (None, source.topics[0]))
        reads = [topic for source in self._pipeline.sources for topic in source.topics]
        if not wanted and self._options.bootstrap is None:
            return  # Tables of raw records need no broker; Spark says if a topic is missing.
        try:
            security = client_security(self._options.properties)
            with Client(self._options.bootstrap or self._brokers(), CONNECT_SECONDS, security) as client:
                counts = {
                    topic.name: len(topic.partitions)
                    for topic in client.metadata([*reads, *wanted]).topics
                    if not topic.error_code
                }
                for topic in reads:
                    if topic not in counts and topic not in made:
                        raise PipelineError(f"The topic {topic!r} does not exist.")
                for topic, (partitions, like) in wanted.items():
                    if topic not in counts:
                        taken = dead[topic].topics if topic in dead else ()
                        _create(client, topic, partitions or counts.get(like, -1), taken)
        except ClientError as error:
            raise PipelineError(f"The brokers cannot be asked: {error}") from None

    def _brokers(self) -> str:
        from penstock.arrow.session import reach
        from penstock.cluster.reading import ImageReader
        from penstock.spark.brokers import addresses

        try:
            image = reach(
                self._store.location, lambda: self._store.run(ImageReader(self._store.store).refresh())
            )
        except SourceError as error:
            raise PipelineError(str(error)) from None
        found = addresses(image)
        if not found:
            raise PipelineError(f"No broker of the cluster in {self._store.location} is alive to write to.")
        return found

    # The queries.

    def _open(self) -> "SparkSession":
        options = self._options
        return open_session(
            settings_of(self._pipeline, options.file, options.master, options.location, options.settings),
            self.log,
        )

    def _start(self, spark: "SparkSession") -> None:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        from penstock.spark.source import make_active

        make_active(spark)
        try:
            plans = [self._plan(spark, one) for one in self._pipeline.outputs.values()]
            used = {id(one) for output in self._pipeline.outputs.values() for one in output.sources}
            plans += [
                self._plan_dead(spark, source)
                for source in self._pipeline.sources
                if source.dead_letters is not None and id(source) in used
            ]
            self.status.outputs.extend(status for status, _start in plans)
            self._waiting = plans
            self._start_some()
        except (PySparkException, Py4JJavaError) as error:
            raise PipelineError(sentence(error)) from None
        self.status.state = "running"

    def _start_some(self) -> bool:
        """Start as many queries as have room beside each other; false if none was started.

        What is done once on this machine is not done faster by all at once: two cores a query it is then.
        """
        from pyspark.errors import PySparkException

        room = max(1, (os.cpu_count() or 2) // 2)
        if not (self._options.once and self._options.master.startswith("local")):
            room = len(self.status.outputs)
        started = False
        while self._waiting and sum(one.query.isActive for one in self._running) < room:
            status, start = self._waiting.pop(0)
            try:
                query = start()
            except PySparkException as error:
                raise PipelineError(f"The output {status.name!r} cannot be run: {sentence(error)}") from None
            self._running.append(Running(status, start, query, set()))
            _wait_for_worker(self._running[-1].query)
            started = True
        return started

    def _plan(self, spark: "SparkSession", output: Output) -> "tuple[OutputStatus, Callable[[], Any]]":
        status = OutputStatus(
            name=output.name,
            kind="topic" if isinstance(output.target, Topic) else "table",
            target=self._target(output),
            checkpoint=f"{self._home}/checkpoints/{self._checkpoint(output)}",
            topics=[topic for source in output.sources for topic in source.topics],
        )
        frames = [
            good(source, stream(spark, source, self._reading(output.name, number)))
            for number, source in enumerate(output.sources)
        ]
        rows = result(output, frames)
        if isinstance(output.target, Topic):
            return status, lambda: self._to_topic(rows, status, output.target.topic, output.mode)
        why = changed(output, frames, rows)
        return status, lambda: self._to_table(rows, status, output, why)

    def _checkpoint(self, output: Output) -> str:
        """An output's name, unless it is a dead-letter topic's. Another query writes these letters, and has
        that name for its own checkpoint."""
        letters = any(output.name == source.dead_letters for source in self._pipeline.sources)
        return f"{output.name}~output" if letters else output.name

    def _plan_dead(self, spark: "SparkSession", source: Source) -> "tuple[OutputStatus, Callable[[], Any]]":
        assert source.dead_letters is not None
        topic = source.dead_letters
        status = OutputStatus(
            name=f"{topic}",
            kind="dead letters",
            target=topic,
            checkpoint=f"{self._home}/checkpoints/{topic}",
            topics=list(source.topics),
        )
        rows = dead(source, stream(spark, source, self._reading(topic, 0)))
        # It may have come compressed, and fit its topic only so. Every client knows this codec.
        return status, lambda: self._to_topic(rows, status, topic, "append", "gzip")

    def _reading(self, name: str, number: int) -> dict[str, str]:
        group = f"{self._pipeline.name}.{name}" + (f".{number}" if number else "")
        return {"store": self._options.store, "group.id": group, **self._options.to_brokers()}

    def _target(self, output: Output) -> str:
        if isinstance(output.target, Topic):
            return output.target.topic
        return output.target.path or f"{self._home}/tables/{output.name}"

    def _writer(self, rows: "DataFrame", status: OutputStatus, mode: str) -> Any:
        from pyspark.sql import functions as f

        counted = rows.observe(ROWS, f.count(f.lit(1)).alias("rows"))
        writer = counted.writeStream.queryName(f"{self._pipeline.name}.{status.name}").outputMode(mode)
        writer = writer.option("checkpointLocation", status.checkpoint)
        if self._options.once:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=self._options.interval)

    def _to_topic(
        self, rows: "DataFrame", status: OutputStatus, topic: str, mode: str, codec: str = "none"
    ) -> "StreamingQuery":
        from penstock.pipeline.topics import TopicWriter

        topics = TopicWriter(
            {
                "topic": topic,
                "store": self._options.store,
                "kafka.compression.type": codec,
                **self._options.to_brokers(),
            }
        )
        query: StreamingQuery = self._writer(rows, status, mode).foreachBatch(topics.add).start()
        topics.query.set_result(query.id)
        return query

    def _to_table(
        self, rows: "DataFrame", status: OutputStatus, output: Output, why: str
    ) -> "StreamingQuery":
        from penstock.pipeline.iceberg import Following, IcebergTable
        from penstock.pipeline.tables import ParquetTable, Plans

        table = output.target
        assert isinstance(table, Table)
        writer = self._writer(rows, status, output.mode)
        if table.format == "delta":
            if table.partition_by:
                writer = writer.partitionBy(*table.partition_by)
            return writer.format("delta").options(**table.options).start(status.target)  # type: ignore[no-any-return]
        assert self._claim is not None
        plans = Plans(self._store, self._claim.check)
        files: ParquetTable | IcebergTable
        if table.format == "iceberg":
            following = Following(status.checkpoint, why, lambda place: self._remember(output, why, place))
            files = IcebergTable(status.target, output.name, dict(table.options), plans, following)
            self._open_tables.append(files)
        else:
            files = ParquetTable(status.target, table.partition_by, dict(table.options), plans)
        query: StreamingQuery = writer.foreachBatch(files.add).start()
        plans.query.set_result(query.id)
        return query

    def _remember(self, output: Output, why: str, place: "Place") -> None:
        """Tell readers of topics that a table holds them, if it does so as they are."""
        from penstock.spark.tables.places import write

        for topic in output.sources[0].topics if not why else ():
            write(self._store, topic, self._pipeline.name, output.name, place)

    # While it runs.

    def _follow(self, show: Callable[[Status], None]) -> None:
        with _signals(self.stop):
            while True:
                alive = any(one.query.isActive for one in self._running)
                self._report(show)
                if self._raise_failure() or self._start_some():
                    continue
                if not alive:
                    self.status.state = "finished"
                    return
                if self._stopping.wait(NEXT_SECONDS if self._waiting else REPORT_SECONDS):
                    self.status.state = "stopped"
                    return

    def _raise_failure(self) -> bool:
        """Raises PipelineError if an output failed; true if one was started again instead."""
        again = False
        for one in self._running:
            error = None if one.query.isActive else one.query.exception()
            if error is not None:
                if no_worker(error) and one.starts < STARTS_MAX:
                    one.starts += 1
                    one.query = one.start()
                    again = True
                    continue
                one.status.error = sentence(error)
                raise PipelineError(f"The output {one.status.name!r} failed: {one.status.error}")
        return again

    def _end_queries(self) -> None:
        for one in self._running:
            with contextlib.suppress(Exception):
                one.query.stop()
        for one in self._running:
            with contextlib.suppress(Exception):
                _observe(one)
        for table in self._open_tables:
            with contextlib.suppress(Exception):
                table.close()

    def _report(self, show: Callable[[Status], None]) -> None:
        for one in self._running:
            with contextlib.suppress(Exception):
                _observe(one)
        self.status.reported_ms = _now_ms()
        if self._claim is not None:
            self._claim.check()
        statuses.write(self._store, self.status)
        show(self.status)


def _wait_for_worker(query: Any) -> None:
    """Until a query's source has its process: many that start at once are the slower for it."""
    deadline = time.monotonic() + WORKER_SECONDS
    while query.isActive and time.monotonic() < deadline:
        if not query.status["message"].startswith(("Initializing", "Getting offsets")):
            return
        time.sleep(0.05)


def _observe(one: Running) -> None:
    """Bring what is told of a query up to date with what Spark says of it."""
    told = one.status
    for progress in one.query.recentProgress:
        number = progress["batchId"]
        if number in one.seen:
            continue
        one.seen.add(number)
        told.batches = number + 1
        told.rows_in += progress["numInputRows"]
        told.rows_in_per_second = progress["processedRowsPerSecond"] or 0.0
        ends = [_offsets(source["endOffset"]) for source in progress["sources"]]
        latest = [_offsets(source["latestOffset"]) for source in progress["sources"]]
        told.positions = {topic: offsets for end in ends for topic, offsets in end.items()}
        told.lag = sum(_behind(end, newest) for end, newest in zip(ends, latest, strict=True))
        observed = progress["observedMetrics"].get(ROWS)
        if observed is not None:
            told.rows_out += observed["rows"]


def _offsets(stored: Any) -> statuses.Positions:
    found = json.loads(stored) if isinstance(stored, str) else stored
    return {
        topic: {number: at for number, at in offsets.items() if isinstance(at, int)}
        for topic, offsets in (found or {}).items()
    }


def _behind(end: statuses.Positions, newest: statuses.Positions) -> int:
    return sum(
        max(0, at - end.get(topic, {}).get(number, 0))
        for topic, offsets in newest.items()
        for number, at in offsets.items()
    )


def _create(client: Client, topic: str, partitions: int, letters_of: Sequence[str]) -> None:
    """`letters_of`: the topics whose dead letters it is to take. They get headers, so they are larger."""
    limits = [one.max_bytes or 0 for one in demands_of(client, letters_of).values()]
    configs = [
        CreatableTopicConfig(name=MAX_BYTES, value=str(min(limit + LETTER_BYTES, (1 << 31) - 1)))
        for limit in (max(limits, default=0),)
        if limit
    ]
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(name=topic, num_partitions=partitions, replication_factor=-1, configs=configs)
        ],
        timeout_ms=30_000,
    )
    (answer,) = client.controller().ask(request, CreateTopicsResponse).topics
    if answer.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise AnswerError(answer.error_code, f"Creating topic {topic!r}", answer.error_message)


def _log_path(home: str) -> Path:
    """Spark's own log: beside the tables, or where temporary files go if those are far away."""
    import tempfile

    local = home.removeprefix("file://")
    if "://" in local:
        # A directory of its own: in one that others can write to, a name that they can guess may be a link.
        return Path(tempfile.mkdtemp(prefix=f"penstock-{home.rpartition('/')[2]}-")) / "spark.log"
    return Path(local) / "spark.log"


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
