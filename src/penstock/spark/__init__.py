"""Spark reads the log itself.

    import penstock.spark
    penstock.spark.register(spark)
    spark.read.format("penstock").option("store", "...").option("subscribe", "events").load()

Supported: Spark 4.2 and 4.3 on Java 17 or newer.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_registered: "WeakSet[SparkSession]" = WeakSet()


def register(spark: "SparkSession") -> None:
    """Make `format("penstock")` known to a Spark session. The one line that a user adds.

    Spark looks for a sink's format in the session that is active on the calling thread, and a thread that was
    made in Python has none: there, say it again before you write.
    """
    from penstock.spark.source import register as register_source

    register_source(spark)
    _registered.add(spark)


def table(
    spark: "SparkSession",
    store: "str | os.PathLike[str]",
    topic: str,
    *,
    table: str | None = None,
    catalog: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    fail_on_data_loss: bool = True,
) -> "DataFrame":
    """All records of a topic, each once: those in its Iceberg table, and those that are only in the log yet.

    The table is one that a pipeline keeps of the topic's records as they are. It is found by the topic's
    name, or is named by `table`: its path, or its name in a `catalog` of pyiceberg's properties. A topic
    without a table is read from the log alone. The DataFrame is what was there when it was made; make another
    one for what came since. `columns` are those of `format("penstock")`, with `headers`. Records that
    retention deleted before they came to the table are an error, unless `fail_on_data_loss` is false.

    Raises SourceError of `penstock.arrow.errors`.
    """
    from penstock.spark.tables.reading import Wanted, frame

    location = os.fspath(store)
    location = location if "://" in location else os.path.abspath(location)
    if spark not in _registered:
        register(spark)
    return frame(spark, Wanted(location, topic, table, dict(catalog or {}), fail_on_data_loss), columns)
