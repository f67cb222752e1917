"""`penstock` with something wrong with it, on purpose. A program: first a variant, then penstock's arguments.

    sound           nothing wrong; but the store obeys the folder of faults, see below
    no-fencing      a writer does not look whether its log was sealed: a paused leader that wakes acknowledges
    early-answers   writes are acknowledged, and readable, a moment before they are written

Brokers of any variant look into the folder that PENSTOCK_FAULTS names: while a file `outage` or `outage-N`
(N: the broker's id) is there, every file operation fails; while `slow` or `slow-N` is there, each takes as
many seconds longer as it says. A checker that finds nothing wrong with the last two variants finds nothing.
"""

import asyncio
import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from penstock.cli.entry import main as penstock
from penstock.storage.files import Files
from penstock.storage.wal import Durable, Outcome
from penstock.storage.wal_directory import DirectoryWalWriter

VARIANTS = ("sound", "no-fencing", "early-answers")
EARLY_SECONDS = 0.3


def obey_faults(folder: str, broker: str) -> None:
    """Make every file operation of the store look for faults first."""

    def trouble() -> None:
        for name in ("outage", f"outage-{broker}"):
            if os.path.exists(f"{folder}/{name}"):
                raise OSError(errno.EIO, "the store is out, on purpose")
        for name in ("slow", f"slow-{broker}"):
            with contextlib.suppress(OSError, ValueError), open(f"{folder}/{name}") as file:
                time.sleep(float(file.read()))

    def troubled(operation: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            trouble()
            return operation(*arguments, **options)

        return wrapper

    for name in ("open", "pwritev", "write_all", "pread", "preadv", "link", "rename", "unlink", "listdir"):
        setattr(Files, name, troubled(getattr(Files, name)))


def skip_fencing() -> None:
    class Blind(Files):
        def exists(self, path: str) -> bool:
            return True

    real = DirectoryWalWriter._write

    def write(self: DirectoryWalWriter, *arguments: Any) -> Outcome:
        sighted, self._files = self._files, Blind()
        try:
            return real(self, *arguments)
        finally:
            self._files = sighted

    DirectoryWalWriter._write = write  # type: ignore[method-assign,assignment]


def answer_early() -> None:
    """Say that a flush is durable, and write it a moment later."""
    real = DirectoryWalWriter._write

    def write(self: DirectoryWalWriter, number: int, parts: list[Any], size: int) -> Outcome:
        copied = [bytes(part) for part in parts]
        if self._fd < 0:
            self._begin_file(number)
        key, position = self._key, getattr(self, "_early", self._position)
        self.__dict__["_early"] = position + size
        loop = asyncio.get_running_loop()
        loop.call_later(EARLY_SECONDS, lambda: real(self, number, list(copied), size))
        return Durable(key, position)

    DirectoryWalWriter._write = write  # type: ignore[method-assign]


def main() -> int:
    variant, arguments = sys.argv[1], sys.argv[2:]
    if variant not in VARIANTS:
        raise SystemExit(f"a variant is one of {', '.join(VARIANTS)}, not {variant}")
    folder = os.environ.get("PENSTOCK_FAULTS")
    if folder:
        broker = arguments[arguments.index("--broker-id") + 1] if "--broker-id" in arguments else "1"
        obey_faults(folder, broker)
    if variant == "no-fencing":
        skip_fencing()
    elif variant == "early-answers":
        answer_early()
    sys.argv = ["penstock", *arguments]
    return penstock()


if __name__ == "__main__":
    sys.exit(main())
