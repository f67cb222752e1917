"""`penstock config check`: whether a broker would start with a file of settings."""

from __future__ import annotations

import click

from penstock.cli.output import show, wants_json

_COLUMNS = {"name": "SETTING", "value": "VALUE"}


@click.group()
def config() -> None:
    """Look at files of settings."""


@config.command()
@click.argument("file", type=click.Path())
@click.option("--set", "assignments", metavar="NAME=VALUE", multiple=True, help="A setting beside the file.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; the default where output is not a terminal."
)
def check(file: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Check FILE as `penstock start --config FILE` would, and list what it sets.

    FILE is TOML, or Kafka's server.properties if it is called *.properties. Exit code: 0 if a broker would
    start with it, 2 if it is refused; the sentence says why. Nothing is connected to and nothing is written.

    \b
    penstock config check broker.toml
    penstock config check server.properties --set broker.id=2
    """
    from penstock.cli.start import UsageError, settings
    from penstock.settings import SettingsError
    from penstock.settings.doors import doors, refuse_open_doors

    try:
        made = settings({"config": [file], "set": list(assignments)})
        refuse_open_doors(made, made.given)
        if any(door.tls is not None for door in doors(made, made.given)):
            from penstock.node.entrances import refuse_bad_keys

            refuse_bad_keys(made)
        if made.metrics_token_file:
            from penstock.monitor.admission import Tokens

            Tokens(made.metrics_token_file).read()
    except (UsageError, SettingsError) as error:
        click.echo(f"penstock: {error}", err=True)
        raise SystemExit(2) from None
    rows = [{"name": name, "value": value} for name, value in made.shown().items()]
    show(rows, _COLUMNS, as_json=wants_json(as_json))
