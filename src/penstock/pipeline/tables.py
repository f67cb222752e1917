"""Tables: rows of micro-batches, each once, in files that any engine can read.

Parquet. A micro-batch is written to a directory of its own beside the data, and then its files are moved to
the table under names that begin with the number of the micro-batch. So nobody ever sees half a file; and a
micro-batch that is run again, because a driver died, finds by the names what it has written before, and
replaces it. Spark's own sink for files keeps a list of those that count, which only Spark reads: to everybody
else, what a dead driver left behind are rows.

Delta. Spark's sink for it does the same with a log that every reader of Delta knows.

Iceberg. No published jar fits this Spark. The files of a micro-batch are written as for Parquet, and become
part of the table by pyiceberg in one commit, which carries the number of the micro-batch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAGING = "_staging"
"""Readers of tables leave out what begins with an underscore."""

Fence = Callable[[], None]
"""Raises if another run of the pipeline has begun since."""


class ParquetTable:
    def __init__(
        self, path: str, partition_by: tuple[str, ...], options: dict[str, str], fence: Fence
    ) -> None:
        self._path = path
        self._partition_by = partition_by
        self._options = options
        self._fence = fence
        self._swept = False

    def add(self, frame: "DataFrame", batch: int) -> None:
        """What `foreachBatch` calls."""
        self.write(frame, batch)

    def write(self, frame: "DataFrame", batch: int) -> list[str]:
        """Add the rows of a micro-batch; the files that hold them."""
        files = Files(frame.sparkSession, self._path)
        if not self._swept:
            # Only the first micro-batch of a run can have been written before, and only a run that has ended
            # can have left anything in the staging directory.
            files.delete(f"{self._path}/{STAGING}")
            for file in files.find(f"{self._path}/{'*/' * len(self._partition_by)}{_prefix(batch)}*"):
                files.delete(file)
            self._swept = True
        staged = f"{self._path}/{STAGING}/{batch}-{uuid4().hex}"
        writer = frame.write.mode("overwrite").options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.parquet(staged)
        self._fence()
        moved = files.move_parts(staged, self._path, _prefix(batch))
        files.delete(staged)
        return moved


def _prefix(batch: int) -> str:
    return f"batch-{batch:09d}-"


class Files:
    """Files of a table, through Spark's own access to them, wherever they are."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(path).getFileSystem(configuration)

    def find(self, pattern: str) -> list[str]:
        return [one.getPath().toString() for one in self._files.globStatus(self._path(pattern)) or ()]

    def delete(self, path: str) -> None:
        self._files.delete(self._path(path), True)

    def move_parts(self, staged: str, target: str, prefix: str) -> list[str]:
        """Move Spark's part files, with the directories of their partitions."""
        moved: list[str] = []
        self._move_in(self._path(staged), self._path(target), prefix, moved)
        return moved

    def _move_in(self, source: Any, target: Any, prefix: str, moved: list[str]) -> None:
        for one in self._files.listStatus(source):
            name = one.getPath().getName()
            if one.isDirectory():
                self._move_in(one.getPath(), self._path(target, name), prefix, moved)
            elif name.startswith("part-"):
                self._files.mkdirs(target)
                place = self._path(target, f"{prefix}{name.removeprefix('part-')}")
                if not self._files.rename(one.getPath(), place):
                    raise OSError(f"{one.getPath()} could not be moved to {place}")
                moved.append(place.toString())
