"""A pipeline is a list of sources, and of outputs that a plain function makes of them.

    from penstock.pipeline import Json, Pipeline

    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", value=Json("id long not null, amount double"))

    @pipeline.table("clean")
    def clean(orders):
        return orders.select("value.*", "timestamp")

Decorators give the function back as it was: a test calls it with a DataFrame of its own. Nothing here needs
Spark; `frames` and `runner` turn definitions into queries.
"""

import re
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from penstock.pipeline.errors import PipelineError, no_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Mode = Literal["append", "update", "complete"]
Transform = Callable[..., Any]
F = TypeVar("F", bound=Transform)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
TABLE_FORMATS = ("parquet", "delta", "iceberg")


class Format(Protocol):
    """How the bytes of a column become a value."""

    def decode(self, frame: "DataFrame", column: str, error: str) -> "DataFrame":
        """The frame with `column` decoded, and the column `error` saying what is wrong with it, or null.

        A record that has an error has a null there; a record whose bytes are null has neither.
        """


@dataclass(frozen=True, eq=False)
class Source:
    """Topics to read, and the format of their records."""

    topics: tuple[str, ...]
    value: Format | None = None
    key: Format | None = None
    dead_letters: str | None = None
    """The topic for records that cannot be decoded. There is one if anything is decoded."""
    start: str = "earliest"
    options: Mapping[str, str] = field(default_factory=dict)

    def decode(self, frame: "DataFrame") -> "DataFrame":
        """The good records of a frame with the columns of `format("penstock")`, decoded."""
        from penstock.pipeline.frames import good

        return good(self, frame)

    def read(self, spark: "SparkSession", **options: str) -> "DataFrame":
        """The good records that are in the topics now, as a batch: for tests and notebooks.

        Takes the options of `format("penstock")`, such as `store`.
        """
        frame = spark.read.format("penstock").option("subscribe", ",".join(self.topics))
        return self.decode(frame.option("includeHeaders", "true").options(**options).load())


@dataclass(frozen=True)
class Topic:
    """Where an output goes: a topic."""

    topic: str
    key: str | None = None
    partitions: int | None = None


@dataclass(frozen=True)
class Table:
    """Where an output goes: a table."""

    format: str = "parquet"
    path: str | None = None
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Output:
    """One streaming query: sources, through a function, to a sink."""

    name: str
    sources: tuple[Source, ...]
    transform: Transform
    target: Topic | Table
    mode: Mode


class Pipeline:
    def __init__(self, name: str) -> None:
        self.name = _checked_name(name, "a pipeline")
        if name.startswith("."):
            raise PipelineError(f"The name of a pipeline does not begin with a dot, as {name!r} does.")
        self.sources: list[Source] = []
        self.outputs: dict[str, Output] = {}

    def source(
        self,
        *topics: str,
        value: Format | None = None,
        key: Format | None = None,
        dead_letters: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        options: Mapping[str, str] | None = None,
    ) -> Source:
        """Read topics. Without `value` and `key`, those columns hold bytes.

        Records that `value` or `key` cannot decode go to the topic `dead_letters`, by default the topic's
        name with `.dead`, or the pipeline's for several topics. `options` are those of `format("penstock")`.
        """
        if not topics or not all(isinstance(one, str) and one for one in topics):
            raise PipelineError(
                f"A source of pipeline {self.name!r} takes the names of topics, not {_listed(topics)}."
            )
        for part, given in (("value", value), ("key", key)):
            if given is not None and not callable(getattr(given, "decode", None)):
                raise PipelineError(
                    f"The {part} of a source is decoded by Json, Avro, Protobuf or Text, such as"
                    f" Json('id long'), not by {given!r}."
                )
        if start not in ("earliest", "latest"):
            raise PipelineError(f"A source starts at 'earliest' or 'latest', not at {start!r}.")
        if dead_letters is None and (value is not None or key is not None):
            dead_letters = f"{topics[0] if len(topics) == 1 else self.name}.dead"
        if dead_letters in topics:
            raise PipelineError(f"The topic {dead_letters!r} cannot hold its own dead letters.")
        for other in self.sources:
            if dead_letters is not None and dead_letters == other.dead_letters:
                raise PipelineError(
                    f"Two sources of pipeline {self.name!r} have the dead-letter topic {dead_letters!r};"
                    " use one source for several outputs, or name another topic."
                )
        made = Source(tuple(topics), value, key, dead_letters, start, dict(options or {}))
        self.sources.append(made)
        return made

    def table(
        self,
        name: str,
        *sources: Source,
        format: str = "parquet",
        path: str | None = None,
        partition_by: str | Sequence[str] = (),
        mode: Mode = "append",
        options: Mapping[str, str] | None = None,
    ) -> Callable[[F], F]:
        """The rows that the function returns are added to a table.

        Its path is, if not given, that of the pipeline's location with `tables` and the name.
        """
        if format not in TABLE_FORMATS:
            raise PipelineError(f"Tables are {', '.join(TABLE_FORMATS)}, not {format!r}.")
        if mode == "update" or (mode == "complete" and format != "delta"):
            raise PipelineError(
                f"The table {name!r} cannot be written in mode {mode!r}: rows are only added to {format}."
                " An aggregate that changes goes to a topic, or is added once its watermark has passed."
            )
        if format == "iceberg" and partition_by:
            raise PipelineError(f"The table {name!r} cannot be partitioned: Iceberg tables here are not.")
        by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        target = Table(format, path, by, dict(options or {}))
        return self._adder(name, sources, target, mode)

    def topic(
        self,
        name: str,
        *sources: Source,
        key: str | None = None,
        partitions: int | None = None,
        mode: Mode = "append",
    ) -> Callable[[F], F]:
        """The rows that the function returns are written to a topic.

        A column `value` of text or bytes is sent as it is. Otherwise the value is a JSON object of the
        columns, and `key` names the one that is the key. The topic is created if it is missing.
        """
        return self._adder(name, sources, Topic(name, key, partitions), mode)

    def _adder(
        self, name: str, sources: tuple[Source, ...], target: Topic | Table, mode: Mode
    ) -> Callable[[F], F]:
        if callable(name):
            raise PipelineError('Outputs have a name: @pipeline.table("name") or @pipeline.topic("name").')
        _checked_name(name, "an output")

        def add(transform: F) -> F:
            read = sources or tuple(self.sources[:1])
            if not read:
                raise PipelineError(f"The output {name!r} has no source.")
            if not sources and len(self.sources) > 1:
                raise PipelineError(
                    f"Pipeline {self.name!r} has several sources: say which ones {name!r} reads."
                )
            if any(one not in self.sources for one in read):
                raise PipelineError(f"The output {name!r} reads something that is no source of its pipeline.")
            if name in self.outputs:
                raise PipelineError(f"Pipeline {self.name!r} has two outputs called {name!r}.")
            self.outputs[name] = Output(name, read, transform, target, mode)
            return transform

        return add


def load(path: str | Path) -> Pipeline:
    """The pipeline that a file defines. Raises PipelineError."""
    file = Path(path)
    if not file.is_file():
        raise PipelineError(f"There is no file {str(path)!r}.")
    beside = str(file.resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)  # As for any script: it may import what lies beside it.
    try:
        found = runpy.run_path(str(file), run_name=f"pipeline_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}")
    except PipelineError:
        raise
    except SyntaxError as error:
        raise PipelineError(f"{path} is not Python: {error.msg}, line {error.lineno}.") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "pyspark":
            raise no_spark(error.name) from error
        what = (
            "it exits"
            if isinstance(error, SystemExit)
            else f"{type(error).__name__}: {' '.join(str(error).split())}"
        )
        line = _line_in(file, error)
        where = f"{path}, line {line}," if line else f"{path}"
        raise PipelineError(f"{where} cannot be loaded: {what}.") from error
    pipelines = {id(one): one for one in found.values() if isinstance(one, Pipeline)}
    if len(pipelines) != 1:
        raise PipelineError(f"{path} is to define one Pipeline; it defines {len(pipelines) or 'none'}.")
    (pipeline,) = pipelines.values()
    if not pipeline.outputs:
        raise PipelineError(f"The pipeline {pipeline.name!r} in {path} has no outputs.")
    return pipeline


def _line_in(file: Path, error: BaseException) -> int | None:
    """The line of a file at which an exception left it, if it came that way."""
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == str(file)
    ]
    return lines[-1] if lines else None


def _listed(given: tuple[object, ...]) -> str:
    return ", ".join(map(repr, given)) or "none"


def _checked_name(name: str, what: str) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None or name in (".", ".."):
        raise PipelineError(f"The name of {what} is made of letters, digits, '.', '_' and '-', not {name!r}.")
    return name
