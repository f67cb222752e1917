"""The `penstock` command. `start` goes its own short way; everything else is in `app`."""

from __future__ import annotations

import errno
import os
import sys

_UNIX = ("fcntl", "resource")
"""Modules that Python has on Linux and macOS only."""

INTERRUPTED = 130
"""What shells say of a command that Ctrl-C ended."""

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Without the name of a file it is what was printed that has no place."""


def main() -> int:
    _open_streams()
    try:
        code = _exit_code()
        _flush()
    except OSError as error:
        if error.errno not in _NOT_WRITTEN or error.filename is not None:
            raise
        print(f"Error: The output cannot be written: {error.strerror}.", file=sys.stderr)
        _discard_output()
        code = 1
    if "obstore" in sys.modules:
        _end(code)
    return code


def _open_streams() -> None:
    """What a starter closed leads nowhere. Its number would be given to a file of the store or to a socket
    otherwise, and libraries write their errors to number 2."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
        if number and getattr(sys, name) is None:
            stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as we run
            setattr(sys, name, stream)


def _exit_code() -> int:
    try:
        return _main()
    except KeyboardInterrupt:  # before there was a command to end
        return INTERRUPTED
    except SystemExit as leaving:
        if not isinstance(leaving.code, int | None):
            raise
        return leaving.code or 0


def _flush() -> None:
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()  # Whoever read it has had enough of it.


def _discard_output() -> None:
    """Nobody tries again to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_any_text() -> None:
    """What standard output has no letter for is printed as JSON writes it, so that JSON stays JSON: in a
    locale that is not UTF-8, and where Windows hands output on."""
    import codecs
    import io
    import json

    def escaped(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return json.dumps(error.object[error.start : error.end])[1:-1], error.end

    codecs.register_error("escaped", escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="escaped")


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
            "consume, groups, doctor, console, ...) run here.",
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

    _print_any_text()
    app(prog_name="penstock")
    return 0
