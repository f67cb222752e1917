"""Tables: rows of micro-batches, each once, in files that any engine can read.

Parquet. A run writes a micro-batch to a directory of its own beside the data, and then moves its files to the
table. So no reader ever sees half a file. A plan decides once which files those are:

    spark/table/<query>/<batch>     the files of a micro-batch, and where they go; created once

If a driver died and a micro-batch runs again, the run finds the plan of the first time, carries that one out,
and deletes its own files. A driver that was paused, replaced and wakes up does the same: it moves files that
are in their place already. There is one danger: the plan of an old micro-batch may be deleted by then, and
the driver could create it anew. Therefore a run looks, after the plan is there and before it moves a file,
whether it still holds the pipeline. Spark's own sink for files keeps a list of the files that count, and only
Spark reads that list: for every other reader, files that a dead driver left behind are rows.

Delta. Spark's sink for it does the same with a log that every reader of Delta knows.

Iceberg. No published jar fits this Spark. The files of a micro-batch are written as for Parquet. pyiceberg
adds them to the table in one commit, which carries the number of the micro-batch and where it ends.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from penstock.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.storage.stores.blocking import BlockingStore

STAGING = "_staging"
"""Readers of tables leave out what begins with an underscore."""
PLANS_KEPT = 3
"""Plans behind the newest one, which alone can be asked for; a few more for whoever looks into a failure."""
QUERY_SECONDS = 60

Fence = Callable[[], None]
"""Raises if another run of the pipeline has begun since."""


def unfit(path: str, why: str) -> PipelineError:
    return PipelineError(
        f"The table at {path} cannot take what its function makes now: {why.rstrip('.')}. Give the output"
        " another name, or its columns the types that they had."
    )


class Plan(msgspec.Struct, frozen=True):
    """The files that a micro-batch adds to a table."""

    staged: str
    files: list[tuple[str, str]]
    """From where to where; all paths are relative to the table's."""


class Plans:
    """The plans of the micro-batches of one query, each decided once."""

    def __init__(self, store: "BlockingStore", fence: Fence) -> None:
        self._store = store
        self._fence = fence
        self.query: Future[str] = Future()
        """The id of the query, which lives in its checkpoint: known once it has started."""

    def decide(self, batch: int, mine: Plan) -> Plan:
        """The plan of a micro-batch: this one, unless there is one already."""
        key = self._key(batch)
        if not self._store.run(self._store.store.create(key, msgspec.json.encode(mine))):
            stored = self._store.run(self._store.store.get(key))
            assert stored is not None, "a plan that exists was read"
            mine = msgspec.json.decode(stored, type=Plan)
        self._fence()
        return mine

    def forget(self, batch: int) -> None:
        if batch >= 0:
            self._store.run(self._store.store.delete(self._key(batch)))

    def id(self) -> str:
        """Of the query."""
        return self.query.result(QUERY_SECONDS)

    def _key(self, batch: int) -> str:
        return f"spark/table/{self.id()}/{batch:012d}"


class ParquetTable:
    def __init__(
        self, path: str, partition_by: tuple[str, ...], options: dict[str, str], plans: Plans
    ) -> None:
        self._path = path
        self._partition_by = partition_by
        self._options = options
        self._swept = False
        self._fits = False
        self.plans = plans

    def add(self, frame: "DataFrame", batch: int) -> None:
        """What `foreachBatch` calls."""
        if not self._fits:
            self._require_fitting(frame)
            self._fits = True
        self.write(frame, batch)

    def _require_fitting(self, frame: "DataFrame") -> None:
        """Files of which one has text where another has numbers are a table that few engines can read."""
        from pyspark.errors import AnalysisException

        try:
            reader = frame.sparkSession.read.option("mergeSchema", "false").option(
                "ignoreCorruptFiles", "true"
            )
            there = reader.parquet(self._path).schema
        except AnalysisException:
            return  # It has no file yet.
        kinds = {one.name: one.dataType.simpleString() for one in frame.schema.fields}
        for one in there.fields:
            had, has = one.dataType.simpleString(), kinds.get(one.name)
            if has not in (None, had) and one.name not in self._partition_by:
                raise unfit(self._path, f"the column {one.name!r} is {has}, and was {had}")

    def write(self, frame: "DataFrame", batch: int) -> list[str]:
        """Add the rows of a micro-batch; the files that hold them."""
        files = Files(frame.sparkSession, self._path)
        staged = f"{STAGING}/{batch}-{uuid4().hex}"
        writer = frame.write.mode("overwrite").options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.parquet(f"{self._path}/{staged}")
        plan = self.plans.decide(batch, Plan(staged, files.moves(staged, f"batch-{batch:09d}-")))
        for source, target in plan.files:
            files.move(source, target)
        for done in {staged, plan.staged}:
            files.delete(done)
        if not self._swept:
            files.sweep(batch)
            self._swept = True
        self.plans.forget(batch - PLANS_KEPT)
        return [f"{self._path}/{target}" for _source, target in plan.files]


class Files:
    """Files of a table, through Spark's own access to them, wherever they are. Paths are relative to it."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._root = path
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(path).getFileSystem(configuration)

    def read(self, path: str) -> str:
        """The text of a small file."""
        stream = self._files.open(self._at(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        self._files.delete(self._at(path), True)

    def sweep(self, batch: int) -> None:
        """Delete what runs that died had staged, up to a micro-batch that is in the table."""
        for name, _directory in self._list(STAGING):
            number = name.partition("-")[0]
            if number.isdigit() and int(number) <= batch:
                self.delete(f"{STAGING}/{name}")

    def moves(self, staged: str, prefix: str) -> list[tuple[str, str]]:
        """Where each of Spark's part files goes, with the directories of its partition."""
        return list(self._moves_in(staged, "", prefix))

    def _moves_in(self, source: str, target: str, prefix: str) -> "list[tuple[str, str]]":
        found = []
        for name, directory in self._list(source):
            if directory:
                found += self._moves_in(f"{source}/{name}", f"{target}{name}/", prefix)
            elif name.startswith("part-"):
                found.append((f"{source}/{name}", f"{target}{prefix}{name.removeprefix('part-')}"))
        return found

    def move(self, source: str, target: str) -> None:
        """Move a file, unless that was done before, also by somebody who does it just now."""
        from py4j.protocol import Py4JJavaError

        why = ""
        try:
            self._files.mkdirs(self._at(target).getParent())
            if self._files.exists(self._at(source)) and self._files.rename(
                self._at(source), self._at(target)
            ):
                return
        except Py4JJavaError as error:
            why = f": {error.java_exception.getMessage()}"
        if not self._files.exists(self._at(target)):
            raise OSError(f"{source} could not be moved to {target} in {self._root}{why}")

    def _list(self, path: str) -> list[tuple[str, bool]]:
        """Names in a directory, and whether they are directories."""
        if not self._files.exists(self._at(path)):
            return []
        return [
            (one.getPath().getName(), one.isDirectory()) for one in self._files.listStatus(self._at(path))
        ]

    def _at(self, path: str) -> Any:
        return self._path(f"{self._root}/{path}")
