"""`penstock consume`: records to standard output, alone or as a member of a group."""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import click

from penstock.cli.client import Client
from penstock.cli.options import cluster_options, connected
from penstock.cli.records import WAIT_MS, ReaderPositions
from penstock.log.isolation import Isolation
from penstock.wire.batch import Record


@click.command("consume")
@cluster_options
@click.argument("topic")
@click.option("--from", "start", metavar="WHERE", default="beginning", show_default=True,
              help="beginning, end, or an offset (with --partition).")  # fmt: skip
@click.option("--partition", "chosen", type=int, multiple=True, help="Only this partition; may be repeated.")
@click.option("--max", "most", type=int, help="Stop after so many records.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new records instead of stopping at the end.")
@click.option("--isolation", type=click.Choice([one.value for one in Isolation]),
              help="read_uncommitted, the default, prints all records. read_committed leaves out those of "
              "aborted transactions, and stops or waits where an open one begins.")  # fmt: skip
@click.option("--committed", is_flag=True, help="The same as --isolation read_committed.")
@click.option("--group", help="Read as a member of this group: go on where it stopped, and commit.")
def consume(
    bootstrap: str,
    as_json: bool,
    topic: str,
    start: str,
    chosen: tuple[int, ...],
    most: int | None,
    follow: bool,
    isolation: str | None,
    committed: bool,
    group: str | None,
) -> None:
    """Print the records of TOPIC: their values, one a line, or all about them with --json.

    \b
    penstock consume orders --from end --follow
    penstock consume orders --isolation read_committed --json
    penstock consume orders --group readers --max 100
    """
    if committed and isolation == Isolation.READ_UNCOMMITTED:
        raise click.UsageError("--committed and --isolation read_uncommitted contradict each other.")
    committed = committed or isolation == Isolation.READ_COMMITTED
    if group is not None and chosen:
        raise click.UsageError("A member of a group is given its partitions: use --group or --partition.")
    with connected(bootstrap) as client:
        if group is not None:
            _consume_as_member(client, group, topic, start, most, follow, committed, as_json)
            return
        partitions = list(chosen) or client.partitions(topic)
        reader = ReaderPositions(client, topic, partitions, start, committed)
        for found in itertools.islice(reader.records(follow=follow), most):
            if found is not None:
                _print(topic, *found, as_json)
        sys.stdout.flush()


def _consume_as_member(
    client: Client,
    group: str,
    topic: str,
    start: str,
    most: int | None,
    follow: bool,
    committed: bool,
    as_json: bool,
) -> None:
    """Read as a member of `group`. Without --follow it ends when all its partitions are read to the end."""
    from penstock.cli.group_client import GroupMember

    client.partitions(topic)
    member = GroupMember(client, group, topic)
    left = most
    finished = False
    try:
        while not finished and (left is None or left > 0):
            partitions = member.join()
            if not partitions:
                finished = not follow
                while follow and member.stay():
                    time.sleep(WAIT_MS / 1000)
                continue
            reader = ReaderPositions(client, topic, partitions, start, committed)
            reader.go_on_at(member.resume_at())
            finished = True
            for found in reader.records(follow=follow, pauses=True):
                if found is not None:
                    partition, record = found
                    _print(topic, partition, record, as_json)
                    member.handed_on(partition, record.offset)
                    left = None if left is None else left - 1
                    if left == 0:
                        break
                else:
                    member.reached(reader.positions)
                    if not member.stay():
                        finished = False
                        break
            sys.stdout.flush()
    finally:
        member.leave()


def _print(topic: str, partition: int, record: Record, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write((record.value or b"") + b"\n")
        if sys.stdout.isatty():
            sys.stdout.flush()
        return
    fields: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _readable(record.key),
        "value": _readable(record.value),
        "headers": [[name, _readable(value)] for name, value in record.headers],
    }
    sys.stdout.write(json.dumps(fields, ensure_ascii=False) + "\n")
    if sys.stdout.isatty():
        sys.stdout.flush()


def _readable(data: bytes | None) -> Any:
    """Text where it is text, else what it is in base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(data).decode()}
