"""`penstock consume`: records to standard output, alone or as a member of a group."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence

import click

from penstock.admin.filters import FilterError, Matches, matching
from penstock.admin.records import WAIT_MS, ReaderPositions
from penstock.admin.resetting import WayError
from penstock.cli import formats
from penstock.cli.client import Client, ClientError
from penstock.cli.options import connected, record_options
from penstock.log.isolation import Isolation


@click.command("consume")
@record_options
@click.argument("topic")
@click.option("--from", "start", metavar="WHERE", default="beginning", show_default=True,
              help="beginning, end, an offset, -N for the last N of each partition, @MILLISECONDS, or a date "
              "and time.")  # fmt: skip
@click.option("--partition", "chosen", type=int, multiple=True, help="Only this partition; may be repeated.")
@click.option("--max", "most", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new records instead of stopping at the end.")
@click.option("--isolation", type=click.Choice([one.value for one in Isolation]),
              help="read_uncommitted, the default, prints all records. read_committed leaves out those of "
              "aborted transactions, and stops or waits where an open one begins.")  # fmt: skip
@click.option("--committed", is_flag=True, help="The same as --isolation read_committed.")
@click.option("--format", "form", metavar="TEXT",
              help="How to print a record, as kcat does: %t topic, %p partition, %o offset, %T timestamp, "
              "%k key, %s value, %h headers, %K and %S lengths, %R the value's as four bytes; "
              "\\n, \\t, \\xHH.")  # fmt: skip
@click.option("--key", "keys", multiple=True, help="Only records with this key; may be repeated.")
@click.option("--grep", "greps", metavar="REGEX", multiple=True, help="Only values in which this is found.")
@click.option("--field", "fields", metavar="PATH=VALUE", multiple=True,
              help="Only values that are JSON with this field, such as customer.id=7.")  # fmt: skip
@click.option("--header", "headers", metavar="NAME[=VALUE]", multiple=True,
              help="Only records with this header.")  # fmt: skip
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
    form: str | None,
    keys: tuple[str, ...],
    greps: tuple[str, ...],
    fields: tuple[str, ...],
    headers: tuple[str, ...],
    group: str | None,
) -> None:
    """Print the records of TOPIC: their values, one a line, or all about them with --json.

    \b
    penstock consume orders --from end --follow
    penstock consume orders --isolation read_committed --json
    penstock consume orders --group readers --max 100
    penstock consume orders --format '%p %o %k: %s\\n' --from 2026-01-31T12:00:00
    penstock consume orders --from -10 --field customer.id=7
    """
    if committed and isolation == Isolation.READ_UNCOMMITTED:
        raise click.UsageError("--committed and --isolation read_uncommitted contradict each other.")
    committed = committed or isolation == Isolation.READ_COMMITTED
    if group is not None and chosen:
        raise click.UsageError("A member of a group is given its partitions: use --group or --partition.")
    if form is not None and as_json:
        raise click.UsageError("--format and --json contradict each other.")
    write = formats.compiled(form) if form is not None else formats.as_json if as_json else formats.as_value
    try:
        wanted = matching(keys, greps, fields, headers)
    except FilterError as error:
        raise click.UsageError(str(error)) from None
    most = None if most is None else min(most, sys.maxsize)
    with connected(bootstrap) as client, _as_usage():
        if group is not None:
            _consume_as_member(client, group, topic, start, most, follow, committed, write, wanted)
            return
        partitions = _chosen(topic, client.partitions(topic), chosen)
        reader = ReaderPositions(client, topic, partitions, start, committed)
        found = (one for one in reader.records(follow=follow) if one is not None)
        for partition, record in itertools.islice(
            (one for one in found if wanted is None or wanted(one[1])), most
        ):
            _print(write(topic, partition, record), follow)
        sys.stdout.flush()


@contextlib.contextmanager
def _as_usage() -> Iterator[None]:
    """A start that makes no sense is a mistake in the command."""
    try:
        yield
    except WayError as error:
        raise click.UsageError(str(error)) from None


def _chosen(topic: str, partitions: list[int], chosen: Sequence[int]) -> list[int]:
    for one in chosen:
        if one not in partitions:
            raise click.UsageError(f"Topic {topic} has {len(partitions)} partitions; there is no {one}.")
    return list(chosen) or partitions


def _consume_as_member(
    client: Client,
    group: str,
    topic: str,
    start: str,
    most: int | None,
    follow: bool,
    committed: bool,
    write: formats.Write,
    wanted: Matches | None,
) -> None:
    """Read as a member of `group`. Without --follow it ends when all its partitions are read to the end."""
    from penstock.cli.group_member import GroupMember

    client.partitions(topic)
    member = GroupMember(client, group, topic)
    left = most
    finished = False
    printed: dict[int, int] = {}

    def hand_on() -> None:
        # What cannot be written, because a disk is full or nobody reads any more, is not committed.
        sys.stdout.flush()
        for partition, offset in printed.items():
            member.handed_on(partition, offset)
        printed.clear()

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
                    if wanted is None or wanted(record):
                        _print(write(topic, partition, record), follow)
                        left = None if left is None else left - 1
                    printed[partition] = record.offset
                    if left == 0:
                        break
                else:
                    hand_on()
                    member.reached(reader.positions)
                    if not member.stay():
                        finished = False
                        break
            hand_on()
            member.reached(reader.positions)  # also where nothing came yet: the next run goes on from here
    except (ClientError, KeyboardInterrupt):
        hand_on()
        raise
    finally:
        member.leave()


def _print(line: bytes, at_once: bool) -> None:
    """`at_once`: whoever reads this waits for it."""
    sys.stdout.buffer.write(line)
    if at_once or sys.stdout.isatty():
        sys.stdout.flush()
