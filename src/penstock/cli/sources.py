"""Where `penstock produce` has its records from: files or standard input, with progress on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import click

from penstock.cli.formats import unreadable
from penstock.wire.batch import Record

TIMESTAMP_MAX = 2**53
"""Of what is beyond, JSON's readers do not agree on the last digits."""
CHUNK_BYTES = 256 * 1024
"""How much is read at once, and between two looks at the progress."""


class Source:
    def __init__(self, paths: Sequence[str], *, whole: bool) -> None:
        """`whole`: each file, or all of standard input, is one record."""
        self._paths = paths
        self._whole = whole
        self._read = 0
        self._tell: Callable[[], None] | None = None

    def lines(self) -> Iterator[bytes | None]:
        """The lines; None where there is no further one yet, so that nobody waits for what came before."""
        if not self._paths:
            try:
                yield from self._of(sys.stdin.buffer)
            except OSError as error:
                raise click.ClickException(f"Standard input cannot be read: {error.strerror}.") from error
        for path in self._paths:
            try:
                with open(path, "rb") as file:
                    yield from self._of(file)
            except OSError as error:
                raise click.ClickException(f"{path} cannot be read: {error.strerror}.") from error

    def _of(self, file: BinaryIO) -> Iterator[bytes | None]:
        if self._whole:
            data = file.read()
            self._read += len(data)
            yield data
            return
        begun: list[bytes] = []
        while chunk := _read(file):
            self._count(len(chunk))
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                yield b"".join([*begun, line]) if begun else line
                begun.clear()
            if rest:
                begun.append(rest)
            if not _has_more(file):
                yield None
        if begun:
            yield b"".join(begun)

    def _count(self, size: int) -> None:
        self._read += size
        if self._tell is not None:
            self._tell()

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


def _read(file: BinaryIO) -> bytes:
    """What is there, CHUNK_BYTES at most; of a pipe or a terminal it waits for the first of it only."""
    return os.read(file.fileno(), CHUNK_BYTES) if _has_number(file) else file.read(CHUNK_BYTES)


def _has_number(file: BinaryIO) -> bool:
    """It is a file of the system's, not one in memory."""
    try:
        file.fileno()
    except OSError:
        return False
    return True


def _has_more(file: BinaryIO) -> bool:
    """Can it be read without waiting, as far as one can know?"""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError):
        return not _has_number(file)  # Windows cannot tell of pipes.


def record_of_json(line: bytes, number: int) -> Record:
    """A record as `consume --json` prints it. Offsets are given anew.

    What is not there is null, but for the value, which has to be: null deletes its key. A timestamp that is
    not there, or that few clients can read, is that of now.
    """
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("it is no object")
        if "value" not in fields:
            raise ValueError("it has no value; null is that of a record without one")
        return Record(
            0,
            _timestamp(fields.get("timestamp")),
            unreadable(fields.get("key")),
            unreadable(fields.get("value")),
            tuple(_header(one) for one in _listed(fields.get("headers"))),
        )
    except RecursionError:
        raise click.ClickException(f"Line {number} is not a record in JSON: it is too deep.") from None
    except (ValueError, TypeError) as error:
        raise click.ClickException(f"Line {number} is not a record in JSON: {error}.") from None


def _timestamp(given: Any) -> int:
    if given is not None and type(given) is not int:
        raise ValueError("its timestamp is not a number of milliseconds")
    return given if given is not None and 0 <= given <= TIMESTAMP_MAX else time.time_ns() // 1_000_000


def _listed(headers: Any) -> list[Any]:
    if not isinstance(headers or [], list):
        raise ValueError('its headers are not [["name", "value"], ...]')
    return headers or []


def _header(given: Any) -> tuple[str, bytes | None]:
    match given:
        case [str(name), value]:
            return name, unreadable(value)
    raise ValueError('its headers are not [["name", "value"], ...]')
