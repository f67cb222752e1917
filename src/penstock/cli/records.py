"""`penstock produce`: records from standard input, files or the command line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable

import click

from penstock.admin.records import Sender
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
@click.option("--acks", type=click.Choice(["all", "1"]), default="all", show_default=True)
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
    if whole and form == "json":
        raise click.UsageError("--whole and --input json contradict each other.")
    fixed = tuple(_header(text) for text in headers)
    source = Source(paths, whole=whole)
    lines: Iterable[bytes] = map(os.fsencode, values) if values else source.lines()
    if form == "json":
        records = (record_of_json(line, number) for number, line in enumerate(lines, 1))
    else:
        records = (_record(line, key, key_separator, fixed) for line in lines)
    with connected(bootstrap) as client:
        partitions = client.partitions(topic, create=True)
        if partition is not None and partition not in partitions:
            raise click.UsageError(
                f"Topic {topic} has {len(partitions)} partitions; there is no {partition}."
            )
        sender = Sender(
            client, topic, partitions, CODEC_NAMES.index(compression), -1 if acks == "all" else int(acks)
        )
        with source.progress():
            for record in records:
                sender.send(record, partition)
            sender.flush()
    fields = {"topic": topic, "records": sender.count, "last_offsets": sender.last_offsets}
    if wants_json(as_json) or not sys.stdin.isatty():
        print(json.dumps(fields), file=sys.stdout if wants_json(as_json) else sys.stderr)
    else:
        say(f"Sent {counted(sender.count, 'record')} to {topic}.", fields, as_json=False)


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
