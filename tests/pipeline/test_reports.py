"""What is told of pipelines: on a terminal, in lines, and from checkpoints that Spark wrote. No Spark."""

from __future__ import annotations

import io
import json
import os
import socket
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.pipeline import Lines
from penstock.cli.pipeline_display import Live
from penstock.pipeline.checkpoints import lag, read_checkpoint
from penstock.pipeline.runner import default_location
from penstock.pipeline.status import OutputStatus, Status, crashed, process_started
from penstock.testing import Broker
from tests.spark.workshop import Workshop


def status() -> Status:
    return Status(
        pipeline="shop",
        run="r",
        state="running",
        file="f.py",
        host=socket.gethostname(),
        pid=os.getpid(),
        process_started=process_started(os.getpid()),
        master="local[*]",
        once=False,
        location="/x",
        started_ms=1_000,
        reported_ms=61_000,
        outputs=[
            OutputStatus(
                name="clean", kind="table", target="/x/clean", checkpoint="/c", batches=3, rows_in=1500,
                rows_out=1400, rows_in_per_second=750.4, lag=500,
            ),
            OutputStatus(
                name="dead", kind="dead letters", target="dead", checkpoint="/d", batches=1, rows_in=1500,
                rows_out=100,
            ),
        ],
    )  # fmt: skip


def test_figures_on_a_terminal() -> None:
    out = io.StringIO()
    with Live(Console(file=out, force_terminal=True, width=100)) as live:
        live.show(status())
    text = out.getvalue()
    for words in ("shop: running on local[*]", "1,500", "1,400", "750", "500", "dead letters", "75%"):
        assert words in text


def test_lines_elsewhere_tell_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    lines, told = Lines(as_json=False), status()
    lines.show(told)
    lines.show(told)
    told.outputs[0].batches, told.outputs[0].rows_in, told.outputs[0].lag = 4, 2000, 0
    lines.show(told)
    assert capsys.readouterr().out.splitlines() == [
        "shop: running on local[*]",
        "clean (table): 1500 rows in, 1400 out, 750 rows/s, lag 500",
        "dead (dead letters): 1500 rows in, 100 out, 0 rows/s, lag ?",
        "clean (table): 2000 rows in, 1400 out, 750 rows/s, lag 0",
    ]
    Lines(as_json=True).show(told)
    assert json.loads(capsys.readouterr().out)["outputs"][0]["rows_in"] == 2000


def test_a_silent_run_is_a_crashed_one() -> None:
    told = status()
    assert not crashed(told, told.reported_ms + 100_000)  # Its process is there.
    told.process_started += 1  # Another process has its number now.
    assert crashed(told, told.reported_ms)
    told.host = "elsewhere"
    assert not crashed(told, told.reported_ms + 10_000)
    assert crashed(told, told.reported_ms + 20_000)
    told.state = "stopped"
    assert not crashed(told, told.reported_ms + 20_000)


def test_positions_are_read_from_checkpoints(tmp_path: Path) -> None:
    assert read_checkpoint(str(tmp_path / "none")) is None
    for folder, name, text in (
        ("offsets", "0", 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":5,"topicId":"x"}}'),
        ("offsets", "1", 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":7,"topicId":"x"}}'),
        ("offsets", "2", 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":9,"topicId":"x"}}'),
        ("commits", "0", 'v1\n{"nextBatchWatermarkMs":0}'),
        ("commits", "1", 'v1\n{"nextBatchWatermarkMs":0}'),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
        (tmp_path / folder / f".{name}.crc").write_bytes(b"crc")
    found = read_checkpoint(str(tmp_path))
    assert found is not None
    assert (found.batches, found.positions, found.begun) == (2, [{"t": {"0": 7}}], True)


def test_lag_is_told_by_the_store(tmp_path: Path) -> None:
    with Workshop(str(tmp_path / "store")) as workshop:
        workshop.create("t", 2)
        workshop.write("t", [b"x"] * 10)
        workshop.write("t", [b"x"] * 4, 1)
        assert lag(workshop.store, ["t"], [{"t": {"0": 7, "1": 4}}]) == 3
        assert lag(workshop.store, ["t"], [{"t": {"0": 7}}]) == 7
        assert lag(str(tmp_path / "nothing"), ["t"], []) is None


def test_tables_are_on_the_store_by_default() -> None:
    assert default_location("/data/store") == "/data/store/pipelines"
    assert default_location("s3://bucket/prefix") == "s3a://bucket/prefix/pipelines"
    with Broker() as broker:
        assert default_location(str(broker.store)).startswith(str(broker.store))
