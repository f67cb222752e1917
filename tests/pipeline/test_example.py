"""The functions of a pipeline file, called with a DataFrame that the test made: no stream, no broker."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = Path(__file__).parents[2] / "examples" / "orders.py"
MINUTE_MS = 60_000


def test_the_example_cleans_and_sums(spark: SparkSession) -> None:
    example = runpy.run_path(str(FILE))
    rows = [
        ((number, "c", country, amount, 1_760_000_400_000 + minute * MINUTE_MS), 0, number)
        for number, (country, amount, minute) in enumerate(
            (("DE", 10.0, 0), ("DE", 5.0, 14), ("FR", 1.0, 14), ("DE", 2.0, 16))
        )
    ]
    orders = spark.createDataFrame(
        rows,
        "value struct<order: long, customer: string, country: string, amount: double, at: long>,"
        " partition int, offset long",
    )
    clean = example["clean_orders"](orders).orderBy("order").collect()
    assert [(row.order, row.country, row.amount, row.time.minute) for row in clean] == [
        (0, "DE", 10.0, 0), (1, "DE", 5.0, 14), (2, "FR", 1.0, 14), (3, "DE", 2.0, 16),
    ]  # fmt: skip
    sums = example["revenue"](orders).orderBy("window", "country").collect()
    assert [(row.country, row.revenue, row.orders) for row in sums] == [
        ("DE", 15.0, 2),
        ("FR", 1.0, 1),
        ("DE", 2.0, 1),
    ]
