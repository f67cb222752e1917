"""A Spark driver that expects to be killed: the child process of `conformance.spark.exactly_once`.

It starts a session, says "ready" and waits. On "go N" it runs two streaming queries from one topic, N records
a micro-batch: to another topic, and to a Parquet table. On "finish" it lets both catch up, writes the table's
values to a file, one hex string a line, and ends. Standard input and output carry nothing but these words.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock.spark
from penstock.pipeline.errors import no_worker


def session(home: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("exactly once")
        .config("spark.driver.memory", "600m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    penstock.spark.register(spark)
    return spark


class Queries:
    """Both queries. Rows have no key, so that a second attempt sends them to other partitions."""

    def __init__(self, spark: Any, options: dict[str, Any], batch_records: str) -> None:
        self._spark = spark
        self._makers = makers(spark, options, batch_records)
        self._queries = {name: make() for name, make in self._makers.items()}
        self._finishing = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """A query that fails ends this process, unless it had no Python process: then it is started again."""
        try:
            penstock.spark.register(self._spark)  # On this thread too.
            self._restart_for_ever()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _restart_for_ever(self) -> None:
        while True:
            time.sleep(0.2)
            with self._finishing:
                for name, query in self._queries.items():
                    error = query.exception()
                    if error is None:
                        continue
                    if not no_worker(error):
                        print(f"{name} failed: {error}", file=sys.stderr, flush=True)
                        os._exit(1)
                    self._queries[name] = self._makers[name]()

    def catch_up(self) -> None:
        for name in self._makers:
            while True:
                with self._finishing:
                    query = self._queries[name]
                try:
                    query.processAllAvailable()
                    break
                except Exception as error:
                    if not no_worker(error):
                        raise
                    time.sleep(1)  # until the other thread has started it again
        with self._finishing:
            # A query that is stopped in the middle of something may call that a failure.
            stopping, self._queries = self._queries, {}
            for query in stopping.values():
                query.stop()


def makers(spark: Any, options: dict[str, Any], batch_records: str) -> dict[str, Callable[[], Any]]:

    def source() -> Any:
        reader = spark.readStream.format("penstock").option("store", options["store"])
        reader = reader.option("subscribe", options["source"]).option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", batch_records).load().select("value")

    home = Path(options["home"])
    sink = options["sink"]
    to_topic = source().writeStream.format(sink).option("topic", options["target"])
    to_topic = to_topic.option("kafka.bootstrap.servers", options["bootstrap"])
    to_table = source().writeStream.format("parquet").option("path", str(home / "table"))
    return {
        name: query.option("checkpointLocation", str(home / name)).trigger(processingTime="0 seconds").start
        for name, query in (("to-topic", to_topic), ("to-table", to_table))
    }


def main() -> int:
    options = json.loads(sys.argv[1])
    home = Path(options["home"])
    if options["jars"]:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {options['jars']} pyspark-shell"
    spark = session(home)
    print("ready", flush=True)
    queries: Queries | None = None
    for line in sys.stdin:
        match line.split():
            case ["go", batch_records]:
                queries = Queries(spark, options, batch_records)
            case ["finish"]:
                assert queries is not None
                queries.catch_up()
                values = spark.read.parquet(str(home / "table")).selectExpr("hex(value)").collect()
                (home / "values").write_text("".join(f"{row[0]}\n" for row in values))
                print("finished", flush=True)
                break
    spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
