"""What a pipeline file may say, and what is said of one that is wrong. No Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.app import app
from penstock.pipeline import Json, Pipeline, PipelineError
from penstock.pipeline.definition import Table, Topic, load
from penstock.pipeline.errors import sentence
from penstock.testing import Broker

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders.py"


def test_the_example_is_a_pipeline() -> None:
    pipeline = load(EXAMPLE)
    assert pipeline.name == "shop"
    assert isinstance(pipeline.outputs["clean_orders"].target, Table)
    assert isinstance(pipeline.outputs["revenue"].target, Topic)
    assert pipeline.sources[0].dead_letters == "orders.dead"


BEGIN = "from penstock.pipeline import Pipeline\np = Pipeline('p')\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = (", "is not Python: '(' was never closed, line 1."),
        ("import nothing_like_this", "cannot be loaded: ModuleNotFoundError"),
        ("x = 1", "is to define one Pipeline; it defines none."),
        ("from penstock.pipeline import Pipeline\np = Pipeline('p')", "has no outputs"),
        ("from penstock.pipeline import Pipeline\np = Pipeline('a/b')", "made of letters"),
        (
            "from penstock.pipeline import Pipeline\np = Pipeline('p')\np.source('t')\n"
            "p.table('x', mode='update')(print)",
            "cannot be written in mode 'update'",
        ),
        (
            "from penstock.pipeline import Pipeline\np = Pipeline('p')\np.source('t')\n"
            "p.table('x', format='csv')(print)",
            "Tables are parquet, delta, iceberg, not 'csv'.",
        ),
        ("x = 1\n\ny = undefined\n", "pipeline.py, line 3, cannot be loaded: NameError: name 'undefined'"),
        ("import sys\nsys.exit(0)", "line 2, cannot be loaded: it exits."),
        ("raise ValueError('one\\ntwo')", "cannot be loaded: ValueError: one two."),
        (f"{BEGIN}p.source('t', value='id long')", "decoded by Json, Avro, Protobuf or Text"),
        (f"{BEGIN}p.source(['t'])", "takes the names of topics, not ['t']."),
        (f"{BEGIN}p.source('t')\n@p.table\ndef rows(t): ...", 'Outputs have a name: @pipeline.table("name")'),
        (f"{BEGIN}p.source('t')\np.table('a b')", "The name of an output is made of letters"),
        ("from penstock.pipeline import Pipeline\nPipeline('.p')", "does not begin with a dot"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text(text)
    done = CliRunner().invoke(app, ["pipeline", "run", str(file)])
    assert done.exit_code == 1
    assert complaint in done.output
    assert done.output.startswith("Error: ") and done.output.count("\n") == 1


def test_a_file_that_needs_spark_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    file = tmp_path / "pipeline.py"
    file.write_text("import pyspark\n")
    done = CliRunner().invoke(app, ["pipeline", "list", str(file)])
    sentence = "Error: Pipelines run on Spark, and pyspark is missing: pip install 'penstock[spark]'.\n"
    assert (done.exit_code, done.output) == (1, sentence)


def test_outputs_name_their_sources() -> None:
    pipeline = Pipeline("p")
    with pytest.raises(PipelineError, match="has no source"):
        pipeline.table("x")(print)
    one, two = pipeline.source("one", value=Json("a int")), pipeline.source("two")
    with pytest.raises(PipelineError, match="several sources"):
        pipeline.table("x")(print)
    assert pipeline.topic("y", one, two)(print) is print
    assert pipeline.outputs["y"].sources == (one, two)
    with pytest.raises(PipelineError, match="two outputs called 'y'"):
        pipeline.table("y", one)(print)
    with pytest.raises(PipelineError, match=r"dead-letter topic 'one\.dead'"):
        pipeline.source("one", value=Json("a int"))


def test_unreachable_clusters_and_unknown_pipelines(tmp_path: Path) -> None:
    def says(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["pipeline", *arguments])
        assert done.exit_code == 1
        assert done.output.count("\n") == 1
        return done.output

    file = str(EXAMPLE)
    assert "No broker answers at 127.0.0.1:1" in says("run", file, "--bootstrap", "127.0.0.1:1")
    assert "No Penstock cluster lives in" in says("run", file, "--store", str(tmp_path / "nothing"))
    assert "There is no file 'gone.py'." in says("status", "gone.py")
    with Broker() as broker:
        where = ("--bootstrap", broker.bootstrap_servers)
        assert "'shop' has never been run on this cluster" in says("status", file, *where)
        for name in ("*", "..", "a//b", "\udcff"):
            assert f"{name!r} has never been run on this cluster" in says("status", *where, "--", name)
        assert "The topic 'orders' does not exist." in says("run", file, *where)
        listed = CliRunner().invoke(app, ["pipeline", "list", *where])
        (row,) = json.loads(listed.output)
        assert (row["pipeline"], row["state"]) == ("shop", "failed")
        assert "The topic 'orders' does not exist." in row["error"]


def test_the_sentence_in_what_spark_says() -> None:
    python = "\n".join(
        (
            "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Failed",
            "Traceback (most recent call last):",
            '  File "x.py", line 1',
            "penstock.arrow.errors.LostRecordsError: Records 1 to 2 are gone.",
            "\tat org.apache.Spark(X.scala:1)",
        )
    )
    assert sentence(RuntimeError(python)) == "Records 1 to 2 are gone."
    analysis = (
        "[UNRESOLVED_COLUMN] A column `x` cannot be resolved. Did you mean `y`? SQLSTATE: 42703;\n'Project"
    )
    assert sentence(RuntimeError(analysis)) == "A column `x` cannot be resolved. Did you mean `y`?"
    java = "java.util.concurrent.ExecutionException: java.io.IOException: disk full\n\tat x"
    assert sentence(RuntimeError(java)) == "disk full."
    failed = "Job aborted due to stage failure: Task 0 failed 1 times, most recent failure: Lost task 0.0"
    called = "\n".join(
        (
            "Traceback (most recent call last):",
            '  File "x.py", line 1',
            "py4j.protocol.Py4JJavaError: An error occurred while calling o5.parquet.",
            f": org.apache.spark.SparkException: {failed} in stage 1.0 (TID 1) (10.0.0.1 executor driver):"
            " java.io.IOException: Mkdirs failed to create file:/x",
            "\tat org.apache.Spark(X.scala:1)",
        )
    )
    assert sentence(RuntimeError(called)) == "Mkdirs failed to create file:/x."
    own = "Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'no'\n"
    assert sentence(RuntimeError(own)) == "KeyError: 'no'."
    created = "Failed to create Python data source: penstock.arrow.errors.OptionError: The option is wrong."
    assert sentence(RuntimeError(created)) == "The option is wrong."
