"""Definitions as DataFrames: a source's columns for functions, its dead letters, and the rows for a topic."""

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.pipeline.definition import Format, Output, Source, Topic
from penstock.pipeline.errors import PipelineError, sentence

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ERROR = "__error"
_RAW = {"value": "__raw_value", "key": "__raw_key"}
PACE = (
    "minPartitions", "maxRecordsPerPartition", "splitBytes", "maxOffsetsPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "maxBytesPerTrigger", "group.id", "kafka.group.id", "checkCrc", "failOnDataLoss",
)  # fmt: skip
"""Options of a source that say how it reads, and not what."""
# The names that Kafka Connect gives to these headers, so that what reads its dead letters reads ours.
REASON = "__connect.errors.exception.message"
TOPIC = "__connect.errors.topic"
PARTITION = "__connect.errors.partition"
OFFSET = "__connect.errors.offset"


def good(source: Source, frame: "DataFrame") -> "DataFrame":
    """The records that can be decoded, with key and value decoded."""
    from pyspark.sql import functions as f

    if not _formats(source):
        return frame
    return _decoded(source, frame).where(f.col(_ERROR).isNull()).drop(_ERROR, *_RAW.values())


def dead(source: Source, frame: "DataFrame") -> "DataFrame":
    """The records that cannot be decoded, as they were, with headers that say where they were and why."""
    from pyspark.sql import functions as f

    bad = _decoded(source, frame).where(f.col(_ERROR).isNotNull())

    def header(name: str, value: "Column") -> "Column":
        return f.struct(f.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    nothing = f.array().cast("array<struct<key:string,value:binary>>")
    told = f.array(
        header(REASON, f.col(_ERROR)),
        header(TOPIC, f.col("topic")),
        header(PARTITION, f.col("partition")),
        header(OFFSET, f.col("offset")),
    )
    return bad.select(
        f.col(_RAW["key"]).alias("key"),
        f.col(_RAW["value"]).alias("value"),
        f.concat(f.coalesce(f.col("headers"), nothing), told).alias("headers"),
        "timestamp",
    )


def _formats(source: Source) -> dict[str, Format]:
    given = {"key": source.key, "value": source.value}
    return {column: one for column, one in given.items() if one is not None}


def _decoded(source: Source, frame: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    frame = frame.withColumns({raw: f.col(column) for column, raw in _RAW.items()})
    errors = []
    for column, one in _formats(source).items():
        errors.append(f"{_ERROR}_{column}")
        frame = one.decode(frame, column, errors[-1])
    return frame.withColumn(_ERROR, f.coalesce(*(f.col(name) for name in errors))).drop(*errors)


def stream(spark: "SparkSession", source: Source, options: dict[str, str]) -> "DataFrame":
    """A source as Spark follows it, not decoded."""
    reader = spark.readStream.format("penstock").options(**options)
    reader = reader.option("subscribe", ",".join(source.topics)).option("startingOffsets", source.start)
    return reader.option("includeHeaders", "true").options(**source.options).load()


def result(output: Output, frames: "list[DataFrame]") -> "DataFrame":
    """What an output's function makes of its sources. Raises PipelineError."""
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    try:
        made = output.transform(*frames)
    except PySparkException as error:
        raise PipelineError(f"The output {output.name!r} cannot be made: {sentence(error)}") from None
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(f"The output {output.name!r} cannot be made: {_told(error)}.") from None
    if not isinstance(made, DataFrame):
        raise PipelineError(
            f"The function of output {output.name!r} returned {type(made).__name__}, not a DataFrame."
        )
    if not made.isStreaming:
        raise PipelineError(
            f"The function of output {output.name!r} returned rows that are not its sources'."
        )
    if isinstance(output.target, Topic):
        return topic_rows(output.target, output.name, made)
    missing = [one for one in output.target.partition_by if one not in made.columns]
    if missing:
        raise PipelineError(
            f"The table {output.name!r} is partitioned by {missing[0]!r}, which is not among its columns:"
            f" {', '.join(made.columns)}."
        )
    return made


def changed(output: Output, frames: "list[DataFrame]", rows: "DataFrame") -> str:
    """Why the rows of an output are not the records of its topics as they are, or nothing if they are."""
    if len(output.sources) != 1:
        return "they come from several sources"
    (source,) = output.sources
    if decoded := _formats(source):
        return f"the {next(iter(decoded))} is decoded"
    if source.start != "earliest":
        return f"its source starts at {source.start!r}"
    names = {name.lower() for name in PACE}
    for name in source.options:
        if name.lower() not in names:
            return f"its source has the option {name!r}"
    if rows is not frames[0] and not rows.sameSemantics(frames[0]):
        return "its function makes other rows of them"
    return ""


def _told(error: Exception) -> str:
    """What a user's function raised, and where."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    calls = traceback.extract_tb(error.__traceback__)[1:]
    return f"{said} ({Path(calls[-1].filename).name}, line {calls[-1].lineno})" if calls else said


def topic_rows(target: Topic, name: str, frame: "DataFrame") -> "DataFrame":
    """Rows as the sink takes them."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, StringType, TimestampType

    kinds = {one.name: one.dataType for one in frame.schema.fields}
    if target.key is not None and target.key not in kinds:
        raise PipelineError(
            f"The key of topic {name!r} is {target.key!r}, which is not among its columns:"
            f" {', '.join(frame.columns)}."
        )
    sent = []
    if isinstance(kinds.get("value"), BinaryType | StringType):
        sent.append(f.col("value"))
        if isinstance(kinds.get("timestamp"), TimestampType):
            sent.append(f.col("timestamp"))
    else:
        columns = [column for column in frame.columns if column not in ("key", "headers")]
        sent.append(f.to_json(f.struct(*columns), {"ignoreNullFields": "false"}).alias("value"))
    if "headers" in kinds:
        sent.append(f.col("headers"))
    key = target.key or ("key" if "key" in kinds else None)
    if key is not None:
        whole = isinstance(kinds[key], BinaryType | StringType)
        sent.append((f.col(key) if whole else f.col(key).cast("string")).alias("key"))
    return frame.select(*sent)
