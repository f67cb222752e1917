"""The rows of a table, by readers that are not the pipeline."""

import contextlib
import json
import os
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from conformance.s3.server import BUCKET


def parquet_rows(path: Path) -> list[int]:
    """By Arrow, which knows nothing of Spark; and file by file, all that are not hidden."""
    found = ds.dataset(path, format="parquet").to_table(columns=["n"]).column("n").to_pylist()
    files = [
        one
        for one in path.rglob("*.parquet")
        if not any(part[:1] in "._" for part in one.relative_to(path).parts)
    ]
    if sum(pq.ParquetFile(one).metadata.num_rows for one in files) != len(found):
        raise AssertionError("a reader of files sees other rows than a reader of the table")
    return [int(n) for n in found]


def delta_rows(path: Path) -> list[int]:
    """By the table's own log: what was added and not removed."""
    live: dict[str, None] = {}
    for entry in sorted((path / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = None
            elif "remove" in action:
                live.pop(action["remove"]["path"], None)
    return [int(n) for one in live for n in pq.read_table(path / one, columns=["n"]).column("n").to_pylist()]


def iceberg_rows(path: Path) -> list[int]:
    from pyiceberg.catalog import load_catalog

    place = f"sqlite:///{path}/catalog.db"
    with contextlib.closing(
        load_catalog("penstock", type="sql", uri=place, warehouse=f"file://{path}")
    ) as catalog:
        found = catalog.load_table("penstock.rows").scan(selected_fields=("n",)).to_arrow()
    return [int(n) for n in found.column("n").to_pylist()]


def s3_rows(path: Path) -> list[int]:
    """Of the table at the same place in the bucket."""
    from pyarrow import fs

    host = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    bucket = fs.S3FileSystem(endpoint_override=host, scheme="http")
    place = f"{BUCKET}/{'/'.join(path.parts[path.parts.index('store') :])}"
    found = ds.dataset(place, filesystem=bucket, format="parquet").to_table(columns=["n"])
    return [int(n) for n in found.column("n").to_pylist()]
