"""The `penstock` command. `start` goes its own short way; everything else is in `app`."""

from __future__ import annotations

import sys


def main() -> int:
    arguments = sys.argv[1:]
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
