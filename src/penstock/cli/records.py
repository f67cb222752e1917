"""`penstock produce`: records from standard input, files or the command line."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable

import click

from penstock.admin.records import Sender
from penstock.cli.client import ClientError
from penstock.cli.options import cluster_options, connected
from penstock.cli.output import counted, say, wants_json
from penstock.cli.sources import Source, record_of_json
from penstock.wire.batch import Record
from penstock.wire.compression import CODEC_NAMES


@click.command("produce")
@cluster_options
@click.argument("topic")
@click.argument("values", nargs=-1)
@click.option("--file", "paths", metavar="FILE", multiple=True, type=click.Path(exists=True, dir_okay=False),
              help="Read this file instead of standard input; may be repeated.")  # fmt: skip
@click.option("--whole", is_flag=True, help="Each file, or all of standard input, is one record.")
@click.option("--input", "form", type=click.Choice(["lines", "json"]), default="lines", show_default=True,
              help="What a line is: a value, or a record as `consume --json` prints it.")  # fmt: skip
@click.option("--key", help="The key of every record.")
@click.option("--key-separator", metavar="TEXT", help="What separates key and value in each line of input.")
@click.option("--header", "headers", metavar="NAME[=VALUE]", multiple=True,
              help="A header of every record; without = its value is null.")  # fmt: skip
@click.option("--partition", type=int, help="The partition; by key, else in turn, if not given.")
@click.option("--compression", type=click.Choice(CODEC_NAMES), default="none", show_default=True)
@click.option("--acks", type=click.Choice(["all", "1"]), default="all", show_default=True,
              help="With 1, what is sent again because its answer was lost may be stored twice.")  # fmt: skip
def produce(
    bootstrap: str,
    as_json: bool,
    topic: str,
    values: tuple[str, ...],
    paths: tuple[str, ...],
    whole: bool,
    form: str,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    acks: str,
) -> None:
    """Send VALUES, or the lines of files or of standard input, to TOPIC.

    \b
    penstock produce orders --key 7 '{"amount": 3}'
    penstock produce orders --file orders.txt --key-separator :
    penstock produce images --file a.png --file b.png --whole
    penstock consume orders --json | penstock produce copy --input json
    """
    if values and (paths or whole):
        raise click.UsageError("Values stand on the command line or come from files, not both.")
    if not values and not paths and sys.stdin is None:
        raise click.UsageError("There is no standard input: give values, or --file.")
    if whole and form == "json":
        raise click.UsageError("--whole and --input json contradict each other.")
    fixed = tuple(_header(text) for text in headers)
    source = Source(paths, whole=whole)
    lines: Iterable[bytes | None] = map(os.fsencode, values) if values else source.lines()
    numbers = itertools.count(1)

    def record_of(line: bytes) -> Record:
        if form == "json":
            return record_of_json(line, next(numbers))
        return _record(line, key, key_separator, fixed)

    with connected(bootstrap) as client:
        partitions = client.partitions(topic, create=True)
        if partition is not None and partition not in partitions:
            raise click.UsageError(
                f"Topic {topic} has {len(partitions)} partitions; there is no {partition}."
            )
        sender = Sender(
            client, topic, partitions, CODEC_NAMES.index(compression), -1 if acks == "all" else int(acks)
        )
        try:
            with source.progress():
                _send_all(sender, lines, record_of, partition)
        except (ClientError, click.ClickException) as error:
            raise click.ClickException(_with_stored(error, sender.stored)) from error
    fields = {"topic": topic, "records": sender.count, "last_offsets": sender.last_offsets}
    if wants_json(as_json) or sys.stdin is None or not sys.stdin.isatty():
        print(json.dumps(fields), file=sys.stdout if wants_json(as_json) else sys.stderr)
    else:
        say(f"Sent {counted(sender.count, 'record')} to {topic}.", fields, as_json=False)


def _send_all(
    sender: Sender, lines: Iterable[bytes | None], record_of: Callable[[bytes], Record], partition: int | None
) -> None:
    try:
        for line in lines:
            if line is None:
                sender.flush()
            else:
                sender.send(record_of(line), partition)
    except click.ClickException:
        sender.flush()  # What came before a line that is none is as good as if the line were not there.
        raise
    sender.flush()


def _with_stored(error: ClientError | click.ClickException, stored: int) -> str:
    """Whoever sends the rest needs to know how much is there."""
    said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    return f"{said} {counted(stored, 'record')} had been stored before." if stored else said


def _record(
    line: bytes, key: str | None, separator: str | None, headers: tuple[tuple[str, bytes | None], ...]
) -> Record:
    value: bytes | None = line
    chosen = None if key is None else os.fsencode(key)
    if separator is not None:
        before, found, after = line.partition(os.fsencode(separator))
        if found:
            chosen, value = before, after
    return Record(0, time.time_ns() // 1_000_000, chosen, value, headers)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    return name, os.fsencode(value) if equals else None
