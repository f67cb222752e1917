"""`/access`: rules, users and quotas, as far as the visitor may see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.admin.rules import OPERATIONS, add_rules, in_words, list_rules, remove_rules, require_principal
from penstock.admin.users import (
    ITERATIONS,
    MECHANISMS,
    add_user,
    list_quotas,
    list_users,
    remove_user,
    require_password,
)
from penstock.client import AnswerError, Client, ClientError
from penstock.console.confirming import require_typed
from penstock.console.visit import Visit, page
from penstock.metadata.access import AccessRule
from penstock.security.words import CLUSTER_NAME, Pattern, Permission, Resource
from penstock.wire.errors import ErrorCode

T = TypeVar("T")

RESOURCES = {one.name.lower().replace("_", "-"): one for one in Resource}
RULES_MAX = 500
"""Rules that are shown at once; finding narrows them."""


class Told(NamedTuple):
    """One part of the page: what the cluster told, or why it did not."""

    rows: list[object]
    refusal: str = ""


@page("/access")
def access(visit: Visit) -> Response:
    return _show(visit)


def _show(visit: Visit, problem: str = "") -> Response:
    wanted = visit.query("find").lower()
    rules = _told(visit, "rules", _rules)
    fitting = [one for one in rules.rows if wanted in " ".join(one.values()).lower()]  # type: ignore[attr-defined]
    return visit.render(
        "access.html",
        400 if problem else 200,
        rules=rules._replace(rows=fitting[:RULES_MAX]),
        count=len(fitting),
        total=len(rules.rows),
        users=_told(visit, "users", _users),
        quotas=_told(visit, "quotas", lambda client: list(list_quotas(client))),
        operations=sorted(OPERATIONS),
        resources=list(RESOURCES),
        mechanisms=MECHANISMS,
        form=visit.form,
        problem=problem,
    )


def _told(visit: Visit, what: str, question: Callable[[Client], list[T]]) -> Told:
    """Of three parts of a page, one that is refused leaves the others."""
    try:
        return Told(list(visit.cluster.remembered(what, question)))
    except AnswerError as error:
        if error.code == ErrorCode.SECURITY_DISABLED:
            return Told([], "This cluster has no access rules: everybody may do everything. The setting "
                        "authorizer.class.name switches them on.")  # fmt: skip
        if error.code.name.endswith("AUTHORIZATION_FAILED"):
            return Told([], f"You may not see the {what} of this cluster. Its administrator can allow it: "
                        "describe on the cluster.")  # fmt: skip
        return Told([], str(error))


def _rules(client: Client) -> list[dict[str, str]]:
    found = [in_words(rule) for rule in list_rules(client)]
    return sorted(found, key=lambda row: (row["principal"], row["resource"], row["name"], row["operation"]))


def _users(client: Client) -> list[tuple[str, str]]:
    known: dict[str, list[str]] = {}
    for user, mechanism, _iterations in list_users(client):
        known.setdefault(user, []).append(mechanism)
    return [(user, ", ".join(sorted(some))) for user, some in sorted(known.items())]


@page("/access", method="POST")
def change(visit: Visit) -> Response:
    actions = {
        "add-rule": _add_rule,
        "remove-rule": _remove_rule,
        "add-user": _add_user,
        "remove-user": _remove_user,
    }
    action = actions.get(visit.form.get("action", ""))
    if action is None:
        raise HTTPException(400, "The form does not say what to do.")
    try:
        with visit.client() as client:
            return visit.done("/access", action(visit, client))
    except AnswerError:
        raise
    except ClientError as error:
        return _show(visit, str(error))


def _rule_of(form: dict[str, str]) -> AccessRule:
    """The rule that the fields describe. Raises ClientError with what is wrong with them."""
    kind = RESOURCES.get(form.get("resource", ""))
    operation = OPERATIONS.get(form.get("operation", ""))
    principal = form.get("principal", "").strip()
    name = CLUSTER_NAME if kind == Resource.CLUSTER else form.get("name", "").strip()
    if kind is None or operation is None:
        raise ClientError("A rule needs an operation and a kind of resource.")
    require_principal(principal)
    if not name:
        raise ClientError("A rule needs the name of the resource; * is every one of its kind.")
    prefixed = form.get("pattern") == "prefixed" and kind != Resource.CLUSTER
    return AccessRule(
        kind,
        name,
        Pattern.PREFIXED if prefixed else Pattern.LITERAL,
        principal,
        form.get("host", "").strip() or "*",
        operation,
        Permission.DENY if form.get("permission") == "deny" else Permission.ALLOW,
    )


def _sentence(rule: AccessRule) -> str:
    words = in_words(rule)
    verb = "may not" if words["permission"] == "deny" else "may"
    each = "every name that begins with " if words["pattern"] == "prefixed" else ""
    where = "" if words["host"] == "*" else f" from {words['host']}"
    return (
        f"{words['principal']} {verb} {words['operation']} {words['resource']} {each}{words['name']}{where}"
    )


def _add_rule(visit: Visit, client: Client) -> str:
    rule = _rule_of(visit.form)
    add_rules(client, [rule])
    return f"Added a rule: {_sentence(rule)}."


def _remove_rule(visit: Visit, client: Client) -> str:
    rule = _rule_of(visit.form)
    require_typed(visit, rule.principal)
    if rule not in list_rules(client):
        raise ClientError("There is no such rule any more.")
    remove_rules(client, [rule])
    return f"Removed a rule: {_sentence(rule)}."


def _add_user(visit: Visit, client: Client) -> str:
    name, password = visit.form.get("user", "").strip(), visit.form.get("password", "")
    if not name:
        raise ClientError("A user needs a name.")
    require_password(password)
    chosen = visit.form.get("mechanism", "")
    mechanisms = (chosen,) if chosen in MECHANISMS else MECHANISMS
    add_user(client, name, mechanisms, password, ITERATIONS)
    return f"User {name} can log in with {' and '.join(mechanisms)}."


def _remove_user(visit: Visit, client: Client) -> str:
    name = visit.form.get("user", "")
    require_typed(visit, name)
    held = sorted(mechanism for user, mechanism, _ in list_users(client) if user == name)
    if not held:
        raise ClientError(f"There is no such user: {name}.")
    remove_user(client, name, held)
    return f"User {name} can no longer log in with {' and '.join(held)}. Connections that are open stay open."
