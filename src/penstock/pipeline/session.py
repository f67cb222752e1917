"""The Spark session that a pipeline runs in."""

import contextlib
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline.definition import Pipeline, Table
from penstock.pipeline.errors import PipelineError, no_spark, sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Published for Spark 4.2, and fits no other."""
DELTA_SPARK = "4.2."
PACKAGES = "spark.jars.packages"
CARRIED = (
    "org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime", "org.apache.parquet:*",
    "org.apache.logging.log4j:*", "org.slf4j:*", "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*", "com.github.luben:*", "org.xerial.snappy:*", "io.airlift:*",
    "commons-logging:*", "org.roaringbitmap:*",
)  # fmt: skip
"""What packages ask for and Spark has, in the versions that it wants."""
HADOOP_AWS = "org.apache.hadoop:hadoop-aws"


def settings_of(
    pipeline: Pipeline, file: str, master: str, location: str, given: Mapping[str, str]
) -> dict[str, str]:
    """Spark's settings: what a pipeline needs, unless the user says otherwise."""
    cores = os.cpu_count() or 2
    settings = {
        "spark.master": master,
        "spark.app.name": f"penstock {pipeline.name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.sql.session.timeZone": "UTC",
        # The default, of 96 bits, is one that only Spark and its kin still write.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.stopTimeout": "60000",
        # Followers ask for news every time; what they say when there is none is of no use.
        "spark.sql.streaming.noDataProgressEventInterval": "5000",
    }
    if importlib.util.find_spec("pandas") is None:
        # Functions of users in Python otherwise begin with a warning that Arrow cannot be used without it.
        settings["spark.sql.execution.pythonUDF.arrow.enabled"] = "false"
    if master.startswith("local"):
        # Spark's default of 200 is for clusters; each partition of a state is a task and a few files.
        settings["spark.sql.shuffle.partitions"] = str(cores)
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
    # Workers find what the file of the pipeline finds: modules beside it, and what is on this path.
    paths = [str(Path(file).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(paths)
    packages = []
    if any(
        isinstance(one.target, Table) and one.target.format == "delta" for one in pipeline.outputs.values()
    ):
        packages.append(_delta())
        settings["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    if location.startswith("s3a://"):
        packages.append(f"{HADOOP_AWS}:{_hadoop_version()}")
        settings.update(_s3a())
    if packages and "spark.jars" not in given:
        settings["spark.jars.excludes"] = ",".join(CARRIED)
        packages += filter(None, [given.get(PACKAGES)])
        given = {**given, PACKAGES: ",".join(packages)}
    return {**settings, **given}


def _delta() -> str:
    import pyspark

    if not pyspark.__version__.startswith(DELTA_SPARK):
        raise PipelineError(
            f"Delta is published for Spark {DELTA_SPARK}x, and this is {pyspark.__version__}."
            f" Install pyspark=={DELTA_SPARK}*, or choose another format."
        )
    return DELTA


def _hadoop_version() -> str:
    """Of the Hadoop that this Spark carries, whose modules must be of one version."""
    import pyspark

    for jar in (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar"):
        return jar.stem.removeprefix("hadoop-client-api-")
    raise PipelineError("This Spark carries no Hadoop client, which tables on S3 need.")


def _s3a() -> dict[str, str]:
    """Hadoop's settings, from the variables that the store is opened by."""
    settings = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
        settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(endpoint.startswith("https")).lower()
    if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def require_spark() -> None:
    """Raises PipelineError if Spark, or what it needs, is not installed."""
    from penstock.spark.java import JavaMissingError, prepare_java

    try:
        prepare_java()
        import llvmlite  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except JavaMissingError as error:
        raise PipelineError(str(error)) from None
    except ImportError as error:
        raise no_spark(error.name) from None


def open_session(settings: Mapping[str, str], log: Path) -> "SparkSession":
    """Start Spark. What Java says goes to a file: to a user it is noise. Raises PipelineError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from penstock.spark import register

    if PACKAGES in settings and "spark.jars.ivySettings" not in settings:
        settings = {**settings, "spark.jars.ivySettings": _resolver(log.with_suffix(".ivy.xml"))}
    # Machines of a cluster are taken to have the same environment at the same place, unless somebody says.
    os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.FileHandler(log))  # What libraries say goes there, too.
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        told: Any = PySparkLogger.getLogger(name)
        told.handlers.clear()  # It prints what the exception says, with all that Java was doing.
        told.addHandler(logging.FileHandler(log))
        told.propagate = False
    try:
        with _said_to(log), _ended_if_interrupted():
            spark = builder.getOrCreate()
        register(spark)
    except (PySparkException, Py4JError, OSError, RuntimeError) as error:
        why = _unresolved(log) or sentence(error)
        raise PipelineError(f"Spark does not start at {settings['spark.master']}: {why} ({log})") from None
    return spark


def close_session(spark: "SparkSession", log: Path) -> None:
    """Stop Spark. A server of its own says, with a traceback, that its only client is gone, as it should."""
    with contextlib.suppress(Exception), log.open("a") as file, contextlib.redirect_stderr(file):
        spark.stop()


def _resolver(file: Path) -> str:
    """Where jars come from: Maven Central, and not first what Maven may have left half done here."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        '<ivysettings><settings defaultResolver="central"/>'
        '<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>'
    )
    return str(file)


def _unresolved(log: Path) -> str | None:
    """If jars could not be had, which: Java's log has it, and the exception does not."""
    with contextlib.suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            if "unresolved dependency" in line:
                return f"{line.strip().strip(':').strip()}."
    return None


@contextlib.contextmanager
def _ended_if_interrupted() -> Iterator[None]:
    """A Java whose Python leaves before they have met waits for it for ever."""
    from pyspark import java_gateway

    gateway: Any = java_gateway
    started: list[subprocess.Popen[bytes]] = []
    plain = gateway.Popen

    def start(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(plain(*arguments, **options))
        return started[-1]

    gateway.Popen = start
    try:
        yield
    except KeyboardInterrupt:
        for process in started:
            process.kill()
        raise
    finally:
        gateway.Popen = plain


@contextlib.contextmanager
def _said_to(log: Path) -> Iterator[None]:
    """Processes that are started meanwhile write what they have to say to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        for number in kept:
            os.dup2(file, number)
        yield
    finally:
        for number, before in kept.items():
            os.dup2(before, number)
            os.close(before)
        os.close(file)
