"""`penstock settings`: what can be set, from the table of all settings."""

from __future__ import annotations

import click

from penstock.cli.options import json_option
from penstock.cli.output import show, wants_json

_COLUMNS = {
    "name": "SETTING",
    "default": "DEFAULT",
    "values": "TYPE AND VALUES",
    "changes": "CHANGES",
    "about": "WHAT IT DOES",
}


@click.command()
@click.argument("text", default="")
@json_option()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the reference, as in docs/settings.md.")
def settings(text: str, as_json: bool, as_markdown: bool) -> None:
    """List the settings of brokers, topics and groups whose names contain TEXT; all of them without it.

    Broker settings are given to `penstock start` by --set or --config.

    \b
    penstock settings retention
    """
    from penstock.settings.reference import about, change_words, default_words, kind_words, markdown, tables

    if as_markdown:
        click.echo(markdown(), nl=False)
        return
    rows = [
        {
            "name": setting.name,
            "scope": setting.scope,
            "default": default_words(setting),
            "values": kind_words(setting),
            "changes": change_words(setting),
            "about": about(setting),
        }
        for settings in tables().values()
        for setting in settings
        if text in setting.name
    ]
    if not rows:
        raise click.ClickException(f"No setting has {text!r} in its name.")
    show(rows, _COLUMNS, as_json=wants_json(as_json))
