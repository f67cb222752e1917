"""The `penstock` command. `start` goes its own short way; everything else is in `app`."""

from __future__ import annotations

import os
import sys

_UNIX = ("fcntl", "resource")
"""Modules that Python has on Linux and macOS only."""

INTERRUPTED = 130
"""What shells say of a command that Ctrl-C ended."""


def main() -> int:
    try:
        code = _main()
    except KeyboardInterrupt:  # before there was a command to end
        code = INTERRUPTED
    except SystemExit as leaving:
        if not isinstance(leaving.code, int | None):
            raise
        code = leaving.code or 0
    if "obstore" in sys.modules:
        _end(code)
    return code


def _end(code: int) -> None:
    """End the process as Python does, but without taking the interpreter apart. The SDK of object stores has
    threads that may get the answer to a request that was given up; one that does so then aborts it all."""
    import atexit
    import contextlib
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _main() -> int:
    try:
        return _run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if error.name not in _UNIX:
            raise
        print(
            "penstock: Brokers run on Linux and macOS only. Commands that talk to brokers (topics, produce, "
            "consume, groups, doctor, ...) run here.",
            file=sys.stderr,
        )
        return 1


def _run(arguments: list[str]) -> int:
    # Whatever the umask is, what a command makes is not for everybody to change.
    os.umask(os.umask(0o022) | 0o002)
    if arguments[:1] == ["start"]:
        from penstock.cli.start_options import parse

        values = parse(arguments[1:])
        if values is not None:
            from penstock.cli.lean import prepare

            prepare()
            from penstock.cli.start import main as start

            return start(values)
    from penstock.cli.app import app

    app(prog_name="penstock")
    return 0
