"""The options of every command that talks to a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import click

from penstock.cli.client import Client, ClientError
from penstock.client import addresses
from penstock.settings import SettingsError
from penstock.settings.clients import OPEN_CLIENT, ClientSecurity, client_security
from penstock.settings.properties import parse_properties

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

PARTITION = click.IntRange(min=0, max=2**31 - 1)
PARTITIONS = click.IntRange(min=1, max=2**31 - 1)
OFFSET = click.IntRange(min=0, max=2**63 - 1)
DAY_SECONDS = 86_400.0


class Seconds(click.FloatRange):
    """A time to wait, which is a number in any case."""

    def __init__(self, minimum: float) -> None:
        super().__init__(min=minimum, max=DAY_SECONDS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return seconds


class _Chosen:
    """What --command-config of the one command that runs says; threads of it ask, too."""

    security: ClientSecurity = OPEN_CLIENT
    properties: Mapping[str, str] = MappingProxyType({})


def cluster_options(command: F) -> F:
    """Add --bootstrap, --command-config and --json."""
    return bootstrap_option(json_option()(security_option(command)))


def record_options(command: F) -> F:
    """The same for a command that prints records: what it prints does not depend on where it is printed."""
    option = json_option("Print JSON: a record in each line, with all about it.")
    return bootstrap_option(option(security_option(command)))


def json_option(text: str = "Print JSON; the default where output is not a terminal.") -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=text)


def security_option(command: F) -> F:
    """Add --command-config, which `security` and `properties` tell of."""
    return click.option(
        "--command-config",
        metavar="FILE",
        envvar="PENSTOCK_COMMAND_CONFIG",
        show_envvar=True,
        expose_value=False,
        is_eager=True,
        callback=_remember,
        help="How to reach a secured cluster: properties as Kafka's tools take them (client.properties).",
    )(command)


def bootstrap_option(command: F) -> F:
    return click.option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        default=DEFAULT_BOOTSTRAP,
        envvar="PENSTOCK_BOOTSTRAP",
        show_default=True,
        show_envvar=True,
        callback=understood,
        help="Where to find the cluster.",
    )(command)


def understood(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Addresses as they were given, if they are addresses."""
    try:
        if text is not None:
            addresses(text)
    except ClientError as error:
        raise click.BadParameter(str(error)) from None
    return text


def connected(bootstrap: str, seconds: float = 30.0) -> Client:
    return Client(bootstrap, seconds, security())


def security() -> ClientSecurity:
    """What --command-config says."""
    return _Chosen.security


def properties() -> Mapping[str, str]:
    """The same as it was given, for those who hand it on."""
    return _Chosen.properties


def _remember(_context: click.Context, _option: click.Parameter, path: str | None) -> None:
    _Chosen.security, _Chosen.properties = OPEN_CLIENT, MappingProxyType({})
    if path is None:
        return
    _Chosen.security, _Chosen.properties = security_in(path), properties_in(path)


def security_in(path: str) -> ClientSecurity:
    """What a file says about how to reach a secured cluster."""
    try:
        return client_security(properties_in(path))
    except SettingsError as error:
        raise click.UsageError(f"{path}: {error}") from None


def properties_in(path: str) -> dict[str, str]:
    """What a file of properties says."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return parse_properties(file.read())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise click.UsageError(f"{path} cannot be read: {reason}.") from None
