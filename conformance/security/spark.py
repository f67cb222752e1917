"""Spark against a cluster of `penstock start --secure`: its own Kafka connector, ours, and a pipeline.

    python -m conformance.security.spark [--only kafka|penstock|pipeline]

The properties that the cluster wrote are given as options with `kafka.` before their names, the same to both. Each
format writes a batch and reads it, writes a stream and reads that. Then `penstock pipeline run --command-config` copies a
topic. Without the options both must be refused. Needs Java and Maven.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

import penstock.spark
from conformance import parts
from conformance.security.secure import PROGRAM, Cluster, secure_cluster
from conformance.server import interrupted_cleanly
from conformance.spark.jars import connector_jars
from penstock.settings.properties import parse_properties

COUNT = 50
PIPELINE = """
from penstock.pipeline import Pipeline, Text

pipeline = Pipeline("copies")
pipeline.source("copies", value=Text())


@pipeline.topic("copied")
def copied(rows):
    return rows.select("key", "value")
"""


def options_of(cluster: Cluster) -> dict[str, str]:
    given = parse_properties(cluster.client_properties.read_text())
    return {f"kafka.{name}": text for name, text in given.items()}


def batch(spark: SparkSession, options: dict[str, str], form: str) -> str:
    topic = f"{form}-batch"
    rows = spark.range(COUNT).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    rows.write.format(form).options(**options).option("topic", topic).mode("append").save()
    found = spark.read.format(form).options(**options).option("subscribe", topic).load()
    values = sorted(int(row.value) for row in found.selectExpr("cast(value as string) as value").collect())
    return "" if values == list(range(COUNT)) else f"read {values}"


def stream(spark: SparkSession, options: dict[str, str], form: str) -> str:
    """What the batch wrote goes on to another topic."""
    source, target = f"{form}-batch", f"{form}-stream"
    reading = spark.readStream.format(form).options(**options).option("subscribe", source)
    rows = reading.option("startingOffsets", "earliest").load().select("key", "value")
    with tempfile.TemporaryDirectory() as checkpoint:
        writing = rows.writeStream.format(form).options(**options).option("topic", target)
        query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination(120)
    found = spark.read.format(form).options(**options).option("subscribe", target).load().count()
    return "" if found == COUNT else f"read {found} rows"


def refused(spark: SparkSession, options: dict[str, str], form: str) -> str:
    """Without what says how to log in."""
    open_ones = {"kafka.bootstrap.servers": options["kafka.bootstrap.servers"]}
    limits = {
        "kafka.default.api.timeout.ms": "5000",
        "kafka.max.block.ms": "5000",
        "kafka.request.timeout.ms": "3000",
    }
    rows = spark.range(1).selectExpr("cast(id as string) as value")
    try:
        rows.write.format(form).options(**open_ones, **limits).option("topic", "never").mode("append").save()
    except Exception:
        return ""
    return "was let in"


def pipeline(cluster: Cluster) -> str:
    file = cluster.store.parent / "copies.py"
    file.write_text(PIPELINE)
    cluster.penstock("produce", "copies", given=b"".join(b"%d\n" % number for number in range(COUNT)))
    login = ["--bootstrap", cluster.bootstrap, "--command-config", str(cluster.client_properties)]
    done = subprocess.run(
        [PROGRAM, "pipeline", "run", str(file), "--once", "--master", "local[1]", *login],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        return f"ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}"
    found = cluster.penstock("consume", "copied", "--max", str(COUNT)).split()
    return "" if sorted(map(int, found)) == list(range(COUNT)) else f"read {found}"


def held(what: str, proof: Callable[[], str]) -> bool:
    began = time.monotonic()
    try:
        why = proof()
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:600]
    print(f"{'FAILED' if why else 'held  '} {what} ({time.monotonic() - began:.0f} s) {why}", flush=True)
    return not why


def session(jars: str, folder: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    made = (
        SparkSession.builder.master("local[2]")
        .appName("secured")
        .config("spark.jars", jars)
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    penstock.spark.register(made)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    forms = ("kafka", "penstock", "pipeline")
    parser.add_argument("--only", choices=forms, help="this one alone")
    only = parser.parse_args().only
    try:
        jars = connector_jars()
    except parts.PartMissing as missing:
        return parts.not_run(missing)
    with interrupted_cleanly(), secure_cluster() as cluster:
        results = []
        if only != "pipeline":
            options = options_of(cluster)
            spark = session(jars, cluster.store.parent)
            for form in forms[:2] if only is None else [only]:
                for proof in (batch, stream, refused):
                    results.append(held(f"{form}, {proof.__name__}", partial(proof, spark, options, form)))
            spark.stop()
        if only in (None, "pipeline"):
            results.append(held("penstock pipeline", partial(pipeline, cluster)))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
