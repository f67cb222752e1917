"""Spark's settings, and a start that is interrupted. No Spark is started."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline import Pipeline, PipelineError, session
from penstock.pipeline.runner import Run, RunOptions
from penstock.pipeline.session import PACKAGES, open_session, settings_of
from penstock.storage.stores.blocking import BlockingStore


def pipeline(format: str = "parquet") -> Pipeline:
    made = Pipeline("shop")
    made.source("orders")
    made.table("rows", format=format)(lambda orders: orders)
    return made


def test_packages_are_those_that_are_needed_and_those_that_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.__version__", f"{session.DELTA_SPARK}9")
    assert PACKAGES not in settings_of(pipeline(), "f.py", "local[*]", "/x", {})
    delta = settings_of(pipeline("delta"), "f.py", "local[*]", "/x", {PACKAGES: "a:b:1"})
    assert delta[PACKAGES].split(",") == [session.DELTA, "a:b:1"]
    far = settings_of(pipeline("delta"), "f.py", "local[*]", "s3a://bucket/x", {})
    assert [one.split(":")[1] for one in far[PACKAGES].split(",")] == ["delta-spark_4.2_2.13", "hadoop-aws"]
    own = settings_of(pipeline("delta"), "f.py", "local[*]", "s3a://bucket/x", {"spark.jars": "x.jar"})
    assert PACKAGES not in own
    monkeypatch.setattr("pyspark.__version__", "4.9.0")
    with pytest.raises(PipelineError, match=r"Delta is published for Spark 4\.2\.x, and this is 4\.9\.0"):
        settings_of(pipeline("delta"), "f.py", "local[*]", "/x", {})


def test_a_store_on_s3_is_found_by_the_same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    found = settings_of(pipeline(), "f.py", "local[*]", "s3a://bucket/x", {})
    prefix = "spark.hadoop.fs.s3a."
    assert found[f"{prefix}endpoint"] == "http://127.0.0.1:9000"
    assert found[f"{prefix}connection.ssl.enabled"] == "false"
    assert found[f"{prefix}endpoint.region"] == "eu-west-1"


def test_java_does_not_outlive_a_start_that_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import java_gateway
    from pyspark.sql import SparkSession

    started: list[subprocess.Popen[bytes]] = []

    def interrupted(_builder: Any) -> None:
        gateway: Any = java_gateway
        started.append(gateway.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        print("said by Java's launcher")
        raise KeyboardInterrupt

    plain = java_gateway.__dict__["Popen"]
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_session({"spark.master": "local[1]"}, tmp_path / "spark.log")
    assert started[0].wait(30) < 0
    assert java_gateway.__dict__["Popen"] is plain


def test_java_that_is_gone_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.protocol import Py4JError, Py4JNetworkError

    for error in (
        Py4JError("An error occurred while calling o810.isActive"),
        Py4JNetworkError("no"),
        ConnectionRefusedError(111, "refused"),
    ):

        def start(_run: Run, _spark: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(Run, "_start", start)
        options = RunOptions(bootstrap=None, store=str(tmp_path), file="f.py", location=str(tmp_path / "out"))
        nobody: Any = object()
        with closing(BlockingStore(str(tmp_path))) as store:
            run = Run(pipeline(), options, store)
            with pytest.raises(PipelineError, match=r"^Spark has ended; its log is .*spark\.log\.$"):
                run.go(lambda _status: None, nobody)
        assert run.status.state == "failed"
