"""The options of every command that talks to a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.cli.client import Client

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def cluster_options(command: F) -> F:
    """Add --bootstrap and --json."""
    command = click.option(
        "--json", "as_json", is_flag=True, help="Print JSON; the default where output is not a terminal."
    )(command)
    return click.option(
        "--bootstrap",
        metavar="HOST:PORT,...",
        default=DEFAULT_BOOTSTRAP,
        envvar="PENSTOCK_BOOTSTRAP",
        show_default=True,
        show_envvar=True,
        help="Where to find the cluster.",
    )(command)


def connected(bootstrap: str) -> Client:
    return Client(bootstrap)
