"""docs/command-line.md: the commands as `--help` has them."""

import inspect
from collections.abc import Iterator

import click

from penstock.cli.app import app

_INTRODUCTION = """\
# The command line

Written by `make reference` from the commands themselves; a test fails while the two differ.

Commands print tables on a terminal and JSON elsewhere, or wherever `--json` is given. Those that print records, and
`pipeline run`, print JSON only then. They take the cluster's address from `--bootstrap` or `PENSTOCK_BOOTSTRAP`, and how
to reach a secured one from `--command-config` or `PENSTOCK_COMMAND_CONFIG`. What goes wrong is told in one sentence; [Errors and exit codes](errors.md) has the codes.
`penstock completion bash` prints the script that completes all of this in a shell.
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its whole name, in the order of the alphabet."""
    for name, command in sorted(app.commands.items()):
        if isinstance(command, click.Group):
            for inner, one in sorted(command.commands.items()):
                yield f"penstock {name} {inner}", one
        else:
            yield f"penstock {name}", command


def markdown() -> str:
    parts = [_INTRODUCTION]
    for name, command in commands():
        if command.hidden:
            continue
        context = click.Context(command, info_name=name)
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"\n## {name}\n\n`{name} {usage}`\n\n{_help(command)}")
        rows = [row for option in command.params if (row := _row(option, context))]
        if rows:
            parts.append("\n| option | what it does | default |\n|---|---|---|\n" + "".join(rows))
    return "".join(parts)


def _help(command: click.Command) -> str:
    """Paragraphs as they are; those that `--help` leaves unwrapped are examples, and stand as code."""
    parts = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            lines = paragraph.lstrip("\b\n").split("\n")
            parts.append("\n".join("    " + line for line in lines))
        else:
            parts.append(" ".join(paragraph.split()))
    return "\n\n".join(parts) + "\n"


def _row(option: click.Parameter, context: click.Context) -> str:
    if not isinstance(option, click.Option) or option.hidden:
        return ""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if not option.is_flag and not option.count:
        names += f" {_escaped(option.make_metavar(context))}"
    default = option.get_default(context, call=False)
    shown = "" if option.is_flag or not isinstance(default, str | int | float) else f"`{default}`"
    if option.envvar:
        shown = f"{shown} or `${option.envvar}`" if shown else f"`${option.envvar}`"
    return f"| {names} | {_escaped(option.help or '')} | {shown} |\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
