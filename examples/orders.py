"""A pipeline: orders in; a clean table, and revenue by window and country out.

    penstock pipeline run examples/orders.py            follows the topic
    penstock pipeline run examples/orders.py --once     does what is there, and stops

The functions are plain ones: a test calls them with a DataFrame of its own (tests/pipeline/test_example.py).
Orders that are not JSON of this schema go to the topic orders.dead, with the reason.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.pipeline import Json, Pipeline

pipeline = Pipeline("shop")

orders = pipeline.source(
    "orders",
    value=Json("order long not null, customer string, country string, amount double, at long"),
)


@pipeline.table("clean_orders")
def clean_orders(orders: DataFrame) -> DataFrame:
    """One row for each order, with its place in the log."""
    return orders.select(
        "value.order",
        "value.customer",
        "value.country",
        "value.amount",
        f.timestamp_millis("value.at").alias("time"),
        "partition",
        "offset",
    )


@pipeline.topic("revenue", key="country", mode="update")
def revenue(orders: DataFrame) -> DataFrame:
    """Revenue by country and quarter of an hour: a record whenever one changes."""
    return (
        orders.select("value.country", "value.amount", f.timestamp_millis("value.at").alias("time"))
        .withWatermark("time", "10 minutes")
        .groupBy(f.window("time", "15 minutes"), "country")
        .agg(f.sum("amount").alias("revenue"), f.count("*").alias("orders"))
        .select("country", f.col("window.start").alias("window"), "revenue", "orders")
    )
