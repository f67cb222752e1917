"""`penstock acls`: who may do what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.admin.rules import OPERATIONS, add_rules, in_words, list_rules, remove_rules, require_principal
from penstock.cli.access import change_store, read_store, store_option
from penstock.cli.client import ClientError
from penstock.cli.options import cluster_options, connected
from penstock.cli.output import counted, say, show, wants_json
from penstock.security.words import CLUSTER_NAME, Pattern, Permission, Resource

if TYPE_CHECKING:
    from penstock.metadata.access import AccessRule
    from penstock.metadata.commands import AnyCommand
    from penstock.metadata.image import ClusterImage

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def acls() -> None:
    """Look at access rules, add and remove them."""


def rule_options(command: F) -> F:
    """What a rule is made of."""
    for option in reversed(
        (
            click.option(
                "--principal", metavar="User:NAME", help="Whom the rule is for; User:* is everybody."
            ),
            click.option(
                "--operation",
                "operations",
                type=click.Choice(sorted(OPERATIONS)),
                multiple=True,
                help="What it is about; may be repeated.",
            ),
            click.option("--topic", "topics", multiple=True, help="A topic; * is every topic."),
            click.option("--group", "groups", multiple=True, help="A consumer group."),
            click.option(
                "--transactional-id", "transactional_ids", multiple=True, help="A transactional id."
            ),
            click.option("--cluster", "on_cluster", is_flag=True, help="The cluster itself."),
            click.option("--user", "users", multiple=True, help="A user, for its delegation tokens."),
            click.option("--token", "tokens", multiple=True, help="A delegation token."),
            click.option("--prefixed", is_flag=True, help="Names are prefixes of names."),
            click.option(
                "--host", default=None, metavar="ADDRESS", help="From where; everywhere if not given."
            ),
            click.option("--deny", is_flag=True, help="The rule denies; it allows without this."),
        )
    ):
        command = option(command)
    return command


class _Asked:
    """The rules that options describe."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.principal: str | None = given["principal"]
        self.host: str | None = given["host"]
        self.deny: bool = given["deny"]
        self.operations = [OPERATIONS[name] for name in given["operations"]]
        self.pattern = Pattern.PREFIXED if given["prefixed"] else Pattern.LITERAL
        self.resources: list[tuple[Resource, str, Pattern]] = []
        for kind, names in (
            (Resource.TOPIC, given["topics"]),
            (Resource.GROUP, given["groups"]),
            (Resource.TRANSACTIONAL_ID, given["transactional_ids"]),
            (Resource.USER, given["users"]),
            (Resource.DELEGATION_TOKEN, given["tokens"]),
        ):
            self.resources += [(kind, name, self.pattern) for name in names]
        if given["on_cluster"]:
            self.resources.append((Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL))

    def rules(self) -> list[AccessRule]:
        """All of them, complete."""
        from penstock.metadata.access import AccessRule

        if not self.principal or not self.operations or not self.resources:
            raise click.UsageError(
                "A rule needs --principal, --operation and a resource: --topic, --group, --transactional-id, "
                "--cluster, --user or --token."
            )
        try:
            require_principal(self.principal)
        except ClientError as error:
            raise click.UsageError(str(error)) from None
        return [
            AccessRule(
                resource,
                called,
                pattern,
                self.principal,
                self.host or "*",
                operation,
                Permission.DENY if self.deny else Permission.ALLOW,
            )
            for resource, called, pattern in self.resources
            for operation in self.operations
        ]

    def matches(self, rule: AccessRule) -> bool:
        """Does a rule fit all that was given?"""
        return (
            self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and (not self.operations or rule.operation in self.operations)
            and (not self.deny or rule.permission == Permission.DENY)
            and (
                not self.resources
                or (rule.resource_type, rule.name, rule.pattern_type)
                in [tuple(map(_plain, one)) for one in self.resources]
            )
        )


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) else value


@acls.command("add")
@cluster_options
@store_option
@rule_options
def add(bootstrap: str, as_json: bool, location: str | None, **given: Any) -> None:
    """Add rules: one for each operation on each resource.

    \b
    penstock acls add --principal User:alice --operation read --topic orders --group shop
    """
    rules = _Asked(given).rules()
    if location is not None:
        from penstock.metadata.commands import SetAcls

        def decide(image: ClusterImage) -> Sequence[AnyCommand]:
            return [SetAcls(tuple(rules))]

        change_store(location, decide)
    else:
        with connected(bootstrap) as client:
            add_rules(client, rules)
    _say("Added", rules, as_json)


@acls.command("list")
@cluster_options
@store_option
@rule_options
def list_command(bootstrap: str, as_json: bool, location: str | None, **given: Any) -> None:
    """List the rules that fit all that is given.

    \b
    penstock acls list
    penstock acls list --topic orders --principal User:shop --json
    """
    rows = [in_words(rule) for rule in _found(bootstrap, location, _Asked(given))]
    columns = {name: name.upper() for name in _COLUMNS}
    show(rows, columns, as_json=wants_json(as_json))


@acls.command("remove")
@cluster_options
@store_option
@rule_options
@click.option("--all", "everything", is_flag=True, help="All rules, if nothing else is given.")
def remove(bootstrap: str, as_json: bool, location: str | None, everything: bool, **given: Any) -> None:
    """Remove the rules that fit all that is given.

    \b
    penstock acls remove --principal User:shop --topic orders --operation write
    """
    asked = _Asked(given)
    if not (everything or asked.principal or asked.resources or asked.operations or asked.host or asked.deny):
        raise click.UsageError("Say which rules to remove, or --all.")
    rules = _found(bootstrap, location, asked)
    if rules and location is not None:
        from penstock.metadata.commands import RemoveAcls

        def decide(image: ClusterImage) -> Sequence[AnyCommand]:
            return [RemoveAcls(tuple(rules))]

        change_store(location, decide)
    elif rules:
        with connected(bootstrap) as client:
            remove_rules(client, rules)
    _say("Removed", rules, as_json)


_COLUMNS = ("principal", "permission", "operation", "resource", "name", "pattern", "host")


def _say(verb: str, rules: Sequence[AccessRule], as_json: bool) -> None:
    fields = {verb.lower(): [in_words(rule) for rule in rules]}
    say(f"{verb} {counted(len(rules), 'rule')}.", fields, as_json=wants_json(as_json))


def _found(bootstrap: str, location: str | None, asked: _Asked) -> list[AccessRule]:
    if location is not None:
        rules = list(read_store(location).access_rules)
    else:
        with connected(bootstrap) as client:
            rules = list_rules(client)
    return [rule for rule in rules if asked.matches(rule)]
