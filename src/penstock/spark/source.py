"""The data source that Spark knows by the name "penstock".

Spark makes an instance on the driver for each read or write, in a worker process, and pickles the readers and
writers that it returns. So this module imports little; code that reads the store is imported where it is
used.
"""

from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.arrow.errors import OptionError
from penstock.spark.options import ReadOptions, read_options, write_options
from penstock.spark.plain import plainly
from penstock.spark.read.schema import full_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SET_BY_SPARK = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": gettempdir(),
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""What Spark sets in the environment of a Python process that it starts, each time, to what holds then."""


class PenstockDataSource(DataSource):
    parallelism = 2
    """How many tasks the session runs at once. `register` makes a subclass that knows."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @plainly
    def schema(self) -> StructType:
        return full_schema(headers=self._checked().include_headers)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.read.batch import BatchReader

        return BatchReader(read_options(self.options, streaming=False), schema, self.parallelism)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.spark.read.stream import StreamReader

        return StreamReader(read_options(self.options, streaming=True), schema, self.parallelism)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.write.sink import BatchWriter

        if overwrite:
            raise OptionError("A topic cannot be overwritten: write with mode 'append'.")
        return BatchWriter(write_options(self.options), schema)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.write.sink import StreamWriter

        return StreamWriter(write_options(self.options), schema)

    def _checked(self) -> ReadOptions:
        """The options, which must make sense for a batch or a stream: which one it is, is not known yet."""
        try:
            return read_options(self.options, streaming=True)
        except OptionError:
            return read_options(self.options, streaming=False)


def register(spark: "SparkSession") -> None:
    """Make `format("penstock")` known to a Spark session. The one line that a user adds."""
    import os
    import sys

    try:
        context = spark.sparkContext
    except Exception:
        spark.dataSource.register(PenstockDataSource)  # Spark Connect has no context on this side.
        return
    chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not chosen and (context.master or "").startswith("local"):
        # Workers are to find the packages that this interpreter has, also if its environment is not active.
        context.pythonExec = sys.executable

    class PenstockSessionDataSource(PenstockDataSource):
        parallelism = context.defaultParallelism

    # Each streaming query sets these in the environment of the source, which all share, while tasks of others
    # are sent with it. Java tears a map that grows meanwhile (java.io.OptionalDataException), but not one in
    # which values are replaced: so they are all there from the start.
    given = context.environment
    context.environment = SET_BY_SPARK | given
    try:
        spark.dataSource.register(PenstockSessionDataSource)
    finally:
        context.environment = given
    make_active(spark)


def make_active(spark: "SparkSession") -> None:
    """Java looks for data sources in the session of its thread, which need not be the one that we have."""
    jvm: Any = spark._jvm
    spark._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)
