"""`penstock` whose file calls and clock obey a folder. A program that takes penstock's arguments.

While PENSTOCK_FAULTS has a file `fail-CALL` (CALL: a method of `penstock.storage.stores.files.Files`), that call fails
with the error that the file names, EIO for instance; with `EIO 0.3`, three calls in ten do. The wall clock is as many milliseconds off as `clock` says.
"""

import contextlib
import errno
import os
import random
import sys
from collections.abc import Callable
from typing import Any

from penstock.cli.entry import main as penstock
from penstock.clock import SystemClock
from penstock.storage.stores.files import Files

FAILING = ("pwritev", "fdatasync", "pread", "preadv", "open", "link", "rename", "unlink", "sync_directory")


def obeying(folder: str, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    path = f"{folder}/fail-{name}"

    def wrapper(*arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(FileNotFoundError), open(path) as file:
            name_of_error, _, share = file.read().strip().partition(" ")
            if random.random() < float(share or 1):
                code = getattr(errno, name_of_error)
                raise OSError(code, os.strerror(code))
        return call(*arguments, **options)

    return wrapper


def shifted(folder: str, call: Callable[[SystemClock], int]) -> Callable[[SystemClock], int]:
    def time_ms(self: SystemClock) -> int:
        now = call(self)
        with contextlib.suppress(OSError, ValueError), open(f"{folder}/clock") as file:
            now += int(file.read())
        return now

    return time_ms


def main() -> int:
    folder = os.environ["PENSTOCK_FAULTS"]
    for name in FAILING:
        setattr(Files, name, obeying(folder, name, getattr(Files, name)))
    SystemClock.time_ms = shifted(folder, SystemClock.time_ms)  # type: ignore[method-assign,assignment]
    sys.argv[0] = "penstock"
    return penstock()


if __name__ == "__main__":
    sys.exit(main())
