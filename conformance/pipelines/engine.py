"""Another engine on a pipeline's Iceberg table: Spark 4.1 with Iceberg's own jar, in a process of its own.

The jar is published for Spark 4.1, and not for the versions that Penstock runs on. So it has an environment of its
own, and works on the table through the same catalog: a file of SQLite, which Iceberg reads by JDBC.
"""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from conformance import parts

SPARK = "4.1"
ICEBERG = "1.12.0"
JARS = (
    parts.Artifact("org.apache.iceberg", f"iceberg-spark-runtime-{SPARK}_2.13", ICEBERG),
    parts.Artifact("org.xerial", "sqlite-jdbc", "3.50.3.0"),
)
UV = Path(sys.executable).with_name("uv")

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

jars, path = sys.argv[1:]
settings = {
    "spark.jars": jars, "spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.memory": "700m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.penstock": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.penstock.type": "jdbc",
    "spark.sql.catalog.penstock.uri": f"jdbc:sqlite:{path}/catalog.db",
    "spark.sql.catalog.penstock.warehouse": f"file://{path}",
    "spark.sql.catalog.penstock.jdbc.schema-version": "V1",
    "spark.sql.catalog.penstock.cache-enabled": "false",
}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(json.dumps([row.asDict() for row in spark.sql(line).collect()], default=str), flush=True)
    except Exception as error:
        print(json.dumps(str(error).splitlines()[0]), flush=True)
"""


class Engine:
    """Runs SQL on the table at a path, whose name is `penstock.penstock.rows` there."""

    def __init__(self, path: Path, log: Path) -> None:
        command = [str(python()), "-c", PROGRAM, ",".join(jars()), str(path)]
        self._log = log.open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        if self._answer() != "ready":
            raise RuntimeError(f"Spark {SPARK} with Iceberg {ICEBERG} does not start: see {log}")

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()

    def sql(self, text: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._answer())
        if isinstance(answer, str):
            raise RuntimeError(f"the other engine says: {answer}")
        return answer

    def compact(self) -> int:
        """All rows in new files; how many files there were."""
        (told,) = self.sql(
            "CALL penstock.system.rewrite_data_files(table => 'penstock.penstock.rows',"
            " options => map('rewrite-all', 'true', 'partial-progress.enabled', 'false'))"
        )
        return int(told["rewritten_data_files_count"])

    def expire(self) -> int:
        """All snapshots but the current one, and their files; how many files went."""
        (told,) = self.sql(
            "CALL penstock.system.expire_snapshots(table => 'penstock.penstock.rows', retain_last => 1,"
            " older_than => TIMESTAMP '2999-01-01 00:00:00')"
        )
        return int(told["deleted_data_files_count"])

    def rows(self) -> int:
        return int(self.sql("SELECT count(*) AS n FROM penstock.penstock.rows")[0]["n"])

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def jars() -> list[str]:
    home = parts.PARTS / f"iceberg-{ICEBERG}"
    found = home / "jars"
    wanted = [found / f"{one.name}-{one.version}.jar" for one in JARS]
    if not all(jar.exists() for jar in wanted):
        home.mkdir(parents=True, exist_ok=True)
        alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        dependencies = "".join(one.dependency().replace("</dependency>", alone) for one in JARS)
        (home / "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>conformance</groupId><artifactId>iceberg</artifactId>"
            f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
        )
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={found}"]
        parts.fetch(f"Iceberg {ICEBERG}", command, home)
    return [str(jar) for jar in wanted]


def python() -> Path:
    """Of an environment with that Spark."""
    home = parts.PARTS / f"spark-{SPARK}"
    program = home / "bin" / "python"
    if not (home / "complete").exists():
        if not UV.exists():
            raise parts.PartMissing(f"uv cannot be had: there is no {UV}; run make dev.")
        shutil.rmtree(home, ignore_errors=True)
        what = f"Spark {SPARK}"
        parts.fetch(what, [str(UV), "venv", "--quiet", "--python", sys.executable, str(home)], parts.ROOT)
        install = [str(UV), "pip", "install", "--quiet", "--python", str(program), f"pyspark=={SPARK}.*"]
        parts.fetch(what, install, parts.ROOT)
        (home / "complete").write_text("")
    return program
