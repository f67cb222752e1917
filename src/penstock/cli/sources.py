"""Where `penstock produce` has its records from: files or standard input, with progress on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import click

from penstock.cli.formats import unreadable
from penstock.wire.batch import Record

TIMESTAMP_MAX = 2**53
"""Of what is beyond, JSON's readers do not agree on the last digits."""
STEP_BYTES = 100_000
"""How much is read between two looks at the progress."""


class Source:
    def __init__(self, paths: Sequence[str], *, whole: bool) -> None:
        """`whole`: each file, or all of standard input, is one record."""
        self._paths = paths
        self._whole = whole
        self._read = 0
        self._told = 0
        self._tell: Callable[[], None] | None = None

    def lines(self) -> Iterator[bytes]:
        if not self._paths:
            yield from self._of(sys.stdin.buffer)
        for path in self._paths:
            try:
                with open(path, "rb") as file:
                    yield from self._of(file)
            except OSError as error:
                raise click.ClickException(f"{path} cannot be read: {error.strerror}.") from error

    def _of(self, file: BinaryIO) -> Iterator[bytes]:
        if self._whole:
            data = file.read()
            self._read += len(data)
            yield data
            return
        for line in file:
            self._read += len(line)
            if self._tell is not None and self._read - self._told >= STEP_BYTES:
                self._told = self._read
                self._tell()
            yield line.removesuffix(b"\n")

    @contextlib.contextmanager
    def progress(self) -> Iterator[None]:
        """Show how much of the files was read, if a person looks and there is enough of it to wait for."""
        total = sum(os.path.getsize(path) for path in self._paths)
        if not self._paths or not sys.stderr.isatty() or total < 1_000_000:
            yield
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        console = Console(file=sys.stderr)
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total)
            self._tell = lambda: bar.update(task, completed=self._read)
            yield


def record_of_json(line: bytes, number: int) -> Record:
    """A record as `consume --json` prints it. Offsets are given anew.

    What is not there is null, but for the value, which has to be: null deletes its key.
    """
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("it is no object")
        if "value" not in fields:
            raise ValueError("it has no value; null is that of a record without one")
        headers = tuple((str(name), unreadable(value)) for name, value in fields.get("headers") or ())
        now_ms, given = time.time_ns() // 1_000_000, fields.get("timestamp")
        return Record(
            0,
            given if isinstance(given, int) and 0 <= given <= TIMESTAMP_MAX else now_ms,
            unreadable(fields.get("key")),
            unreadable(fields.get("value")),
            headers,
        )
    except RecursionError:
        raise click.ClickException(f"Line {number} is not a record in JSON: it is too deep.") from None
    except (ValueError, TypeError) as error:
        raise click.ClickException(f"Line {number} is not a record in JSON: {error}.") from None
