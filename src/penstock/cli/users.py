"""`penstock users`: who can log in with SCRAM."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from penstock.admin.users import (
    ITERATIONS,
    MECHANISMS,
    SALT_BYTES,
    add_user,
    list_users,
    remove_user,
    require_password,
)
from penstock.cli.access import change_store, metadata_option, read_store, store_option
from penstock.cli.options import cluster_options, connected
from penstock.cli.output import say, show, wants_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.metadata.access import ScramCredential
    from penstock.metadata.commands import AnyCommand
    from penstock.metadata.image import ClusterImage
    from penstock.metadata.refusal import Refusal
    from penstock.security.credentials import Mechanism


@click.group()
def users() -> None:
    """Look at users, add and remove them. Of their passwords only derived keys are kept."""


mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(MECHANISMS),
    multiple=True,
    help="Of which login; both SCRAM mechanisms if not given.",
)


@users.command("add")
@cluster_options
@store_option
@metadata_option
@click.argument("name")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(4096, 16384),
    default=ITERATIONS,
    show_default=True,
    help="How much work a guess at the password is.",
)
def add(
    bootstrap: str,
    as_json: bool,
    location: str | None,
    metadata: str,
    name: str,
    password_stdin: bool,
    mechanisms: tuple[str, ...],
    iterations: int,
) -> None:
    """Add a user, or give one another password.

    With --store it works on the store itself, so that the first user exists before the first broker starts.

    \b
    penstock users add alice --password-stdin --store ./penstock-data < password.txt
    """
    if not name:
        raise click.ClickException("A user needs a name.")
    password = _password(password_stdin)
    made = _derived(mechanisms or MECHANISMS, password, iterations)
    if location is not None:
        _add_to_store(location, metadata, name, made)
    else:
        with connected(bootstrap) as client:
            add_user(client, name, mechanisms or MECHANISMS, password, iterations)
    said = " and ".join(mechanism.sasl_name for mechanism in made)
    fields = {"added": name, "mechanisms": [mechanism.sasl_name for mechanism in made]}
    say(f"User {name} can log in with {said}.", fields, as_json=wants_json(as_json))


@users.command("list")
@cluster_options
@store_option
def list_command(bootstrap: str, as_json: bool, location: str | None) -> None:
    """List users and their mechanisms. Nothing of a password is shown.

    \b
    penstock users list
    penstock users list --store s3://bucket/prefix
    """
    known: dict[str, list[str]] = {}
    for user, mechanism, iterations in _listed(bootstrap, location):
        known.setdefault(user, []).append(f"{mechanism}={iterations}")
    rows = [{"user": user, "mechanisms": found} for user, found in sorted(known.items())]
    show(rows, {"user": "USER", "mechanisms": "MECHANISMS=ITERATIONS"}, as_json=wants_json(as_json))


@users.command("remove")
@cluster_options
@store_option
@click.argument("name")
@mechanism_option
def remove(
    bootstrap: str, as_json: bool, location: str | None, name: str, mechanisms: tuple[str, ...]
) -> None:
    """Remove a user, or one of its mechanisms. Connections that are open stay open.

    \b
    penstock users remove shop
    """
    held = {mechanism for user, mechanism, _ in _listed(bootstrap, location) if user == name}
    gone = sorted(held & set(mechanisms) if mechanisms else held)
    if not gone:
        raise click.ClickException(f"There is no such user: {name}.")
    if location is not None:
        _remove_from_store(location, name, gone)
    else:
        with connected(bootstrap) as client:
            remove_user(client, name, gone)
    say(
        f"User {name} can no longer log in with {' and '.join(gone)}.",
        {"removed": name, "mechanisms": gone},
        as_json=wants_json(as_json),
    )


def _password(from_stdin: bool) -> str:
    if from_stdin:
        password = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        raise click.UsageError("Give the password by --password-stdin: no terminal to ask on.")
    require_password(password)
    return password


def _derived(names: Sequence[str], password: str, iterations: int) -> dict[Mechanism, ScramCredential]:
    from penstock.security.credentials import BY_NAME, derived

    return {
        BY_NAME[name]: derived(BY_NAME[name], password, os.urandom(SALT_BYTES), iterations)
        for name in dict.fromkeys(names)
    }


def _listed(bootstrap: str, location: str | None) -> list[tuple[str, str, int]]:
    """User, mechanism, iterations."""
    from penstock.security.credentials import Mechanism

    if location is not None:
        return [
            (user, Mechanism(mechanism).sasl_name, credential.iterations)
            for (user, mechanism), credential in read_store(location).credentials.items()
        ]
    with connected(bootstrap) as client:
        return list_users(client)


# -- on the store ----------------------------------------------------------------------------------------


def _add_to_store(location: str, metadata: str, name: str, made: dict[Mechanism, ScramCredential]) -> None:
    from penstock.metadata.commands import SetScramCredential

    def decide(image: ClusterImage) -> Sequence[AnyCommand]:
        return [SetScramCredential(name, mechanism, credential) for mechanism, credential in made.items()]

    change_store(location, decide, metadata)


def _remove_from_store(location: str, name: str, gone: list[str]) -> None:
    from penstock.metadata.commands import RemoveScramCredential
    from penstock.security.credentials import BY_NAME

    def decide(image: ClusterImage) -> Sequence[AnyCommand] | Refusal:
        return [
            RemoveScramCredential(name, BY_NAME[mechanism])
            for mechanism in gone
            if (name, BY_NAME[mechanism]) in image.credentials
        ]

    change_store(location, decide)
