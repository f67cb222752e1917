"""`penstock pipeline`: run a pipeline, list pipelines, show their state."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.client import ClientError
from penstock.cli.options import DEFAULT_BOOTSTRAP, json_option, properties, security, security_option
from penstock.cli.output import show, wants_json

if TYPE_CHECKING:
    from penstock.pipeline.definition import Pipeline
    from penstock.pipeline.status import OutputStatus, Status
    from penstock.storage.stores.blocking import BlockingStore


@click.group()
def pipeline() -> None:
    """Run pipelines on Spark: topics in, tables and topics out, defined in a Python file."""


def _where(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --bootstrap, --command-config and --store."""
    for option in (
        security_option,
        click.option(
            "--store",
            metavar="DIR_OR_URL",
            envvar="PENSTOCK_STORE",
            show_envvar=True,
            help="The cluster's store; the brokers are asked for it if it is not given.",
        ),
        click.option(
            "--bootstrap",
            metavar="HOST:PORT,...",
            envvar="PENSTOCK_BOOTSTRAP",
            show_envvar=True,
            help=f"Where to find the cluster.  [default: {DEFAULT_BOOTSTRAP}, unless --store is given]",
        ),
    ):
        command = option(command)
    return command


@pipeline.command("run")
@click.argument("file", metavar="FILE.py")
@_where
@json_option("Print JSON: its state in each line.")
@click.option("--once", is_flag=True, help="Stop when everything that is there now is done.")
@click.option(
    "--master", default="local[*]", show_default=True, help="Spark's master, e.g. spark://HOST:PORT."
)
@click.option(
    "--location",
    metavar="DIR_OR_URL",
    help="Where checkpoints and tables go; executors need it, too.  [default: pipelines/ in the store]",
)
@click.option(
    "--interval", default="1 second", show_default=True, help="Time from one look for news to the next."
)
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="A setting of Spark.")
def run_pipeline(
    file: str,
    bootstrap: str | None,
    store: str | None,
    as_json: bool,
    once: bool,
    master: str,
    location: str | None,
    interval: str,
    settings: tuple[str, ...],
) -> None:
    """Run the pipeline that FILE.py defines, from where it was, or else from the beginning of its topics.

    It follows the topics until it is stopped (Ctrl-C, SIGTERM). A run that was killed goes on exactly where
    it was: no row is lost, and none is written twice.

    \b
    penstock pipeline run shop.py
    penstock pipeline run shop.py --once --master spark://host:7077
    """
    from penstock.pipeline.errors import PipelineError
    from penstock.pipeline.runner import Run, RunOptions, default_location
    from penstock.storage.stores.objects import StoreError

    try:
        defined = _load(file)
        opened, bootstrap = _open(bootstrap, store)
        where = location or default_location(opened.location)
        options = RunOptions(
            bootstrap=bootstrap,
            store=opened.location,
            file=str(Path(file).resolve()),
            location=where if "://" in where else str(Path(where).resolve()),
            master=master,
            once=once,
            interval=interval,
            settings=dict(_setting(one) for one in settings),
            properties=dict(properties()),
        )
        run = Run(defined, options, opened)
        if sys.stdout.isatty() and not as_json:
            from penstock.cli.pipeline_display import Live

            with Live() as live:
                status = run.go(live.show)
        else:
            status = run.go(Lines(as_json=as_json).show)
    except (PipelineError, StoreError) as error:
        raise ClientError(str(error)) from None
    if not as_json:
        click.echo(_summary(status))


@pipeline.command("list")
@click.argument("file", metavar="[FILE.py]", required=False)
@_where
@json_option()
def list_pipelines(file: str | None, bootstrap: str | None, store: str | None, as_json: bool) -> None:
    """List the pipelines of the cluster, or the outputs that FILE.py defines.

    \b
    penstock pipeline list
    penstock pipeline list shop.py
    """
    if file is not None:
        rows = _defined(_load(file))
        columns = {
            "output": "OUTPUT",
            "kind": "KIND",
            "target": "TO",
            "topics": "FROM",
            "dead_letters": "DEAD LETTERS",
        }
        show(rows, columns, as_json=wants_json(as_json))
        return
    from penstock.pipeline.overview import names, overview

    opened, _bootstrap = _open(bootstrap, store)
    rows = []
    with _reading(opened):
        for name in names(opened):
            found = overview(opened, name, _now_ms())
            if found is not None:
                rows.append(_row(found.status, found.state, found.silent_seconds))
    columns = {
        "pipeline": "PIPELINE",
        "state": "STATE",
        "outputs": "OUTPUTS",
        "lag": "LAG",
        "dead_letters": "DEAD LETTERS",
        "file": "FILE",
    }
    show(rows, columns, as_json=wants_json(as_json))


@pipeline.command("status")
@click.argument("name", metavar="FILE.py|NAME")
@_where
@json_option()
def pipeline_status(name: str, bootstrap: str | None, store: str | None, as_json: bool) -> None:
    """Show how a pipeline stands: by its last report, its checkpoints and the ends of its topics.

    \b
    penstock pipeline status shop
    """
    from penstock.pipeline.overview import names, overview

    wanted = _load(name).name if name.endswith(".py") else name
    opened, _bootstrap = _open(bootstrap, store)
    with _reading(opened):
        # A name that no pipeline could have may be no key of a store either.
        found = overview(opened, wanted, _now_ms()) if wanted in names(opened) else None
    if found is None:
        raise ClientError(f"The pipeline {wanted!r} has never been run on this cluster.")
    row = _row(found.status, found.state, found.silent_seconds)
    outputs = [_output_row(one) for one in found.status.outputs]
    if wants_json(as_json):
        show([{**row, "outputs": outputs}], {}, as_json=True)
        return
    click.echo(f"{wanted}: {found.sentence}")
    columns = {
        "output": "OUTPUT",
        "kind": "KIND",
        "target": "TO",
        "batches": "BATCHES",
        "rows_in": "IN",
        "rows_out": "OUT",
        "lag": "LAG",
        "error": "ERROR",
    }
    show(outputs, columns, as_json=False)


# What is shown.


class Lines:
    """Progress as plain lines, when something changed; or as JSON, a line each."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: dict[str, tuple[object, ...]] = {}
        self._state = ""

    def show(self, status: Status) -> None:
        if self._as_json:
            import msgspec

            said = (status.state, *((one.name, one.batches) for one in status.outputs))
            if self._last.get("") != said:
                self._last[""] = said
                print(msgspec.json.encode(status).decode(), flush=True)
            return
        if status.state != self._state and status.state in ("starting", "running"):
            self._state = status.state
            print(f"{status.pipeline}: {status.state} on {status.master}", flush=True)
        for one in status.outputs:
            figures = (one.batches, one.rows_in, one.rows_out, one.lag)
            if self._last.get(one.name) != figures and one.batches:
                self._last[one.name] = figures
                print(
                    f"{one.name} ({one.kind}): {one.rows_in} rows in, {one.rows_out} out,"
                    f" {one.rows_in_per_second:.0f} rows/s, lag {'?' if one.lag is None else one.lag}",
                    flush=True,
                )


def _summary(status: Status) -> str:
    took = (status.reported_ms - status.started_ms) / 1000
    if not status.outputs:
        return f"{status.pipeline}: {status.state} after {took:.1f} s, before it ran."
    outputs = ", ".join(
        f"{one.name} {one.rows_out:,} rows" for one in status.outputs if one.kind != "dead letters"
    )
    dead = status.dead_letters()
    return f"{status.pipeline}: {status.state} after {took:.1f} s; {outputs}; {dead:,} dead letters."


def _row(status: Status, state: str, silent_seconds: float) -> dict[str, Any]:
    lags = [one.lag for one in status.outputs]
    return {
        "pipeline": status.pipeline,
        "state": state,
        "outputs": [one.name for one in status.outputs if one.kind != "dead letters"],
        "lag": None if None in lags or not lags else sum(one or 0 for one in lags),
        "dead_letters": status.dead_letters(),
        "file": status.file,
        "host": status.host,
        "pid": status.pid,
        "master": status.master,
        "location": status.location,
        "silent_seconds": round(silent_seconds, 1),
        "error": status.error,
    }


def _output_row(one: OutputStatus) -> dict[str, Any]:
    return {
        "output": one.name,
        "kind": one.kind,
        "target": one.target,
        "topics": one.topics,
        "batches": one.batches,
        "rows_in": one.rows_in,
        "rows_out": one.rows_out,
        "lag": one.lag,
        "positions": one.positions,
        "checkpoint": one.checkpoint,
        "error": one.error,
    }


def _defined(defined: Pipeline) -> list[dict[str, Any]]:
    from penstock.pipeline.definition import Topic

    return [
        {
            "pipeline": defined.name,
            "output": one.name,
            "kind": "topic" if isinstance(one.target, Topic) else f"{one.target.format} table",
            "target": one.target.topic if isinstance(one.target, Topic) else one.target.path,
            "topics": [topic for source in one.sources for topic in source.topics],
            "dead_letters": [source.dead_letters for source in one.sources if source.dead_letters],
        }
        for one in defined.outputs.values()
    ]


# What is needed.


def _load(file: str) -> Pipeline:
    from penstock.pipeline.definition import load
    from penstock.pipeline.errors import PipelineError

    try:
        return load(file)
    except PipelineError as error:
        raise ClientError(str(error)) from None


def _open(bootstrap: str | None, store: str | None) -> tuple[BlockingStore, str | None]:
    """The store, and the brokers if they are to be used."""
    from penstock.arrow.errors import SourceError
    from penstock.arrow.reading import open_blocking
    from penstock.arrow.session import reach
    from penstock.spark.brokers import find_store

    try:
        if store is None:
            bootstrap = bootstrap or DEFAULT_BOOTSTRAP
            store = find_store(bootstrap, security())
        elif "://" not in store:
            store = str(Path(store).resolve())
        opened = open_blocking(store)
        reach(store, lambda: _require_cluster(opened))
    except SourceError as error:
        raise ClientError(str(error).replace("Set the option 'store'", "Give --store")) from None
    return opened, bootstrap


@contextmanager
def _reading(opened: BlockingStore) -> Iterator[None]:
    from penstock.storage.stores.objects import StoreError

    try:
        yield
    except StoreError as error:
        raise ClientError(f"The store {opened.location} cannot be read: {error}") from None


def _require_cluster(opened: BlockingStore) -> None:
    from penstock.cluster.reading import ImageReader

    opened.run(ImageReader(opened.store).refresh())


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise ClientError(f"--set takes a setting of Spark as spark.NAME=VALUE, not {text!r}.")
    return name, value


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
