"""Every command shows how it is used, in lines that it understands, and prints JSON for programs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from penstock.cli.app import app

NO_JSON = {
    "start": "it says that it serves, in a line that stays as it is; its log is JSON with --log-format json",
    "completion": "it prints a program for a shell",
    "console": "it serves pages",
}


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands(app))


def examples(path: str) -> list[str]:
    """Lines of the help that begin with the command, without what is piped in or out."""
    found = []
    for line in (ALL[path].help or "").splitlines():
        found += [part.strip() for part in line.split(" | ") if re.match(rf"\s*penstock {path}\b", part)]
    return found


@pytest.mark.parametrize("path", ALL)
def test_help_has_an_example(path: str) -> None:
    assert examples(path), f"penstock {path} --help shows no example"


@pytest.mark.parametrize(("path", "line"), [(path, line) for path in ALL for line in examples(path)])
def test_an_example_is_understood(path: str, line: str) -> None:
    words = shlex.split(line.partition(" < ")[0].partition(" > ")[0])[1 + len(path.split()) :]
    context = click.Context(ALL[path])
    try:
        ALL[path].parse_args(context, words)
    except click.BadParameter as error:
        # Files of examples are nobody's.
        assert "o such file" in str(error) or "does not exist" in str(error), line


@pytest.mark.parametrize("path", ALL)
def test_every_command_prints_json(path: str) -> None:
    flags = {flag for one in ALL[path].params for flag in one.opts}
    assert ("--json" in flags) == (path not in NO_JSON)


def test_the_list_of_those_without_has_no_others() -> None:
    assert set(NO_JSON) <= set(ALL)
