"""Spark reads the log itself.

    import penstock.spark
    penstock.spark.register(spark)
    spark.read.format("penstock").option("store", "...").option("subscribe", "events").load()

Supported: Spark 4.2 and 4.3 on Java 17 or newer.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make `format("penstock")` known to a Spark session. The one line that a user adds.

    Spark looks for a sink's format in the session that is active on the calling thread, and a thread that was
    made in Python has none: there, say it again before you write.
    """
    from penstock.spark.source import register as register_source

    register_source(spark)
