"""`penstock console`: the web console alone, for any Kafka cluster."""

from __future__ import annotations

import click

from penstock.cli.options import bootstrap_option, properties_in

CONNECTIONS_MAX = 256
"""A browser has up to six, and a page that follows something keeps one."""


@click.command("console")
@bootstrap_option
@click.option("--command-config", metavar="FILE", envvar="PENSTOCK_COMMAND_CONFIG", show_envvar=True,
              help="How to reach a secured cluster: properties as Kafka's tools take them. With "
              "sasl.mechanism and no user in it, visitors log in.")  # fmt: skip
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True,
              help="Where browsers find it; port 0 takes a free one.")  # fmt: skip
@click.option("--name", "names", metavar="HOST", multiple=True,
              help="A name that browsers reach it by, beside addresses and localhost.")  # fmt: skip
@click.option("--tls", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="Serve https: a PEM file with the key and the certificates. A changed file is taken "
              "up.")  # fmt: skip
@click.option("--registry", metavar="URL", default="", envvar="PENSTOCK_REGISTRY", show_envvar=True,
              help="A schema registry, to show Avro and Protobuf.")  # fmt: skip
@click.option("--store", metavar="DIR_OR_URL", default="",
              help="The store of a Penstock cluster, for what is asked of the store itself.")  # fmt: skip
@click.option(
    "--insecure", is_flag=True, help="Let everybody who reaches --listen act as --command-config says."
)
def console(
    bootstrap: str,
    command_config: str | None,
    listen: str,
    names: tuple[str, ...],
    tls: str | None,
    registry: str,
    store: str,
    insecure: bool,
) -> None:
    """Serve pages that show a Kafka cluster, and change it: brokers, topics, records, groups.

    \b
    penstock console --bootstrap kafka-1:9092
    penstock console --bootstrap kafka-1:9093 --command-config sasl.properties
    penstock console --listen 0.0.0.0:8443 --tls console.pem --command-config sasl.properties
    """
    import asyncio

    from penstock.console.options import ConsoleOptions
    from penstock.console.running import serve
    from penstock.settings import SettingsError
    from penstock.settings.clients import visitors_security
    from penstock.settings.http import is_loopback, parse_http_address

    given = {} if command_config is None else properties_in(command_config)
    try:
        security, mechanisms = visitors_security(given)
    except SettingsError as error:
        raise click.UsageError(f"{command_config}: {error}") from None
    try:
        host, _port = parse_http_address(listen)
    except SettingsError:
        raise click.UsageError(f"--listen takes HOST:PORT, not {listen!r}.") from None
    no_login = ""
    if not is_loopback(host):
        if mechanisms and tls is None:
            no_login = "Passwords are not taken over plain HTTP: start the console with --tls FILE."
        elif not mechanisms and not insecure:
            raise click.UsageError(
                f"Others can reach {listen}, and would act as this console does: let them log in "
                "(--command-config with sasl.mechanism and without a user), use an address of loopback, or "
                "say --insecure."
            )
    options = ConsoleOptions(
        bootstrap=bootstrap,
        security=security,
        mechanisms=mechanisms,
        no_login=no_login,
        names=names,
        registry=registry,
        store=store,
    )
    try:
        asyncio.run(serve(options, listen, tls, CONNECTIONS_MAX))
    except KeyboardInterrupt:
        raise SystemExit(0) from None
