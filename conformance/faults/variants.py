"""`penstock` with something wrong with it, on purpose. A program: first a variant, then penstock's arguments.

    sound           nothing wrong; but the store obeys the folder of faults, see below
    no-fencing      a writer does not look whether its log was sealed: a paused leader that wakes acknowledges
    early-answers   writes are acknowledged, and readable, a moment before they are written; leases do not tell

Brokers of any variant look into the folder that PENSTOCK_FAULTS names. While it has a file `outage` or
`outage-N` (N: the broker's id), every file operation fails. While it has `slow` or `slow-N`, each takes as
many seconds longer as the file says. A checker must find something wrong with the last two variants.
"""

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.cli.entry import main as penstock
from penstock.storage.ledger.ledger import Ledger
from penstock.storage.stores.files import Files
from penstock.storage.wal.directory import DirectoryWalWriter
from penstock.storage.wal.port import Outcome
from penstock.wire.buffers import Buffer

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


class Blind(Files):
    """Sees every file, also the one that says that a log is not sealed."""

    def exists(self, path: str) -> bool:
        return True


class Hasty(Files):
    """Believes that bytes are written, and writes them a moment later."""

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        copied = b"".join(buffers)
        held = os.dup(fd)  # The writer may close its own meanwhile.

        def write() -> None:
            os.pwrite(held, copied, position)
            os.close(held)

        threading.Timer(EARLY_SECONDS, write).start()
        return len(copied)


def write_through(files: Files) -> None:
    """Let writers of write-ahead logs, and nobody else, use these files."""
    real = DirectoryWalWriter._write

    def write(self: DirectoryWalWriter, *arguments: Any) -> Outcome:
        own, self._files = self._files, files
        try:
            return real(self, *arguments)
        finally:
            self._files = own

    DirectoryWalWriter._write = write  # type: ignore[method-assign,assignment]


def main() -> int:
    variant, arguments = sys.argv[1], sys.argv[2:]
    if variant not in VARIANTS:
        raise SystemExit(f"a variant is one of {', '.join(VARIANTS)}, not {variant}")
    folder = os.environ.get("PENSTOCK_FAULTS")
    if folder:
        broker = arguments[arguments.index("--broker-id") + 1] if "--broker-id" in arguments else "1"
        obey_faults(folder, broker)
    if variant == "no-fencing":
        write_through(Blind())
    elif variant == "early-answers":
        write_through(Hasty())
        # Leases say how many flushes are durable: brokers would find out by themselves.
        Ledger.durable_flushes = property(lambda _ledger: 0)  # type: ignore[assignment,method-assign]
    sys.argv = ["penstock", *arguments]
    return penstock()


if __name__ == "__main__":
    sys.exit(main())
