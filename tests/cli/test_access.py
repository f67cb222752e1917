"""`penstock users` and `penstock acls`: on the store itself, and through a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.access import read_store
from penstock.cli.app import app
from penstock.metadata.levels import SECURITY_FROM
from penstock.security.credentials import Mechanism, derived
from penstock.settings.access import STANDARD_AUTHORIZER
from penstock.testing import Broker


def run(*arguments: str, stdin: str = "", code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    assert result.exit_code == code, result.output
    return json.loads(result.output) if code == 0 else result.output


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def stored_bytes(store: str) -> bytes:
    return b"".join(path.read_bytes() for path in Path(store).rglob("*") if path.is_file())


def test_the_first_user_is_there_before_the_first_broker(store: str) -> None:
    added = run("users", "add", "alice", "--password-stdin", "--store", store, stdin="pencil-9\n")
    assert added == {"added": "alice", "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]}
    image = read_store(store)
    assert image.level >= SECURITY_FROM
    for mechanism in Mechanism:
        kept = image.credentials["alice", mechanism]
        assert kept == derived(mechanism, "pencil-9", kept.salt, 4096), "the line break is not part of it"
    assert len({credential.salt for credential in image.credentials.values()}) == 2
    assert b"pencil-9" not in stored_bytes(store)
    with Broker(store=store) as broker:
        listed = run("users", "list", "--bootstrap", broker.bootstrap_servers)
    assert listed == [{"user": "alice", "mechanisms": ["SCRAM-SHA-256=4096", "SCRAM-SHA-512=4096"]}]


def test_a_new_store_is_its_owners_alone(store: str, tmp_path: Path) -> None:
    run("users", "add", "alice", "--password-stdin", "--store", store, stdin="x")
    assert Path(store).stat().st_mode & 0o777 == 0o700
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o750)  # Whatever the umask is.
    run("users", "add", "alice", "--password-stdin", "--store", str(tmp_path / "shared"), stdin="x")
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o750


def test_nothing_is_for_everybody_to_change_whatever_the_umask_is(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    subprocess.run(
        [sys.executable, "-m", "penstock", "users", "add", "a", "--password-stdin", "--store", str(folder)],
        input=b"x",
        stdout=subprocess.DEVNULL,
        umask=0,
        check=True,
    )
    assert [path for path in folder.rglob("*") if path.stat().st_mode & 0o002] == []


def test_users_come_and_go_on_the_store(store: str) -> None:
    for name in ("alice", "bob"):
        run("users", "add", name, "--password-stdin", "--store", store, "--iterations", "5000", stdin="x")
    gone = run("users", "remove", "alice", "--store", store, "--mechanism", "SCRAM-SHA-256")
    assert gone == {"removed": "alice", "mechanisms": ["SCRAM-SHA-256"]}
    run("users", "remove", "bob", "--store", store)
    assert run("users", "list", "--store", store) == [{"user": "alice", "mechanisms": ["SCRAM-SHA-512=5000"]}]
    assert "no such user: bob" in run("users", "remove", "bob", "--store", store, code=1)


@pytest.mark.parametrize(
    ("stdin", "why"), [("", "empty"), ("\n", "empty"), ("a\nb", "no line breaks"), ("a\0b", "no NUL")]
)
def test_passwords_that_are_refused(store: str, stdin: str, why: str) -> None:
    said = run("users", "add", "a", "--password-stdin", "--store", store, stdin=stdin, code=1)
    assert why in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("users", "add", "a\udcff", "--password-stdin"),
        ("acls", "add", "--principal", "User:a\udcff", "--operation", "read", "--topic", "t"),
    ],
)
def test_names_that_are_no_text(store: str, arguments: tuple[str, ...]) -> None:
    """Bytes that are not UTF-8, as Python has them in its arguments and its input."""
    said = run(*arguments, "--store", store, stdin="x", code=1)
    assert said == "Error: A name or a password that was given is not UTF-8.\n"


def test_a_password_is_never_an_argument(store: str) -> None:
    assert "--password-stdin" in run("users", "add", "a", "--store", store, code=2)
    assert "No such option" in run("users", "add", "a", "--password", "x", "--store", store, code=2)


RULE = ("--principal", "User:alice", "--operation", "read", "--topic", "orders")


def test_rules_on_the_store(store: str) -> None:
    run("acls", "add", *RULE, "--group", "shop", "--prefixed", "--store", store)
    run("acls", "add", "--principal", "User:*", "--operation", "all", "--cluster", "--deny", "--store", store)
    rows = run("acls", "list", "--store", store)
    columns = ("resource", "name", "pattern", "permission", "operation")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        ("topic", "orders", "prefixed", "allow", "read"),
        ("group", "shop", "prefixed", "allow", "read"),
        ("cluster", "kafka-cluster", "literal", "deny", "all"),
    ]
    assert len(run("acls", "list", "--principal", "User:alice", "--store", store)) == 2
    assert run("acls", "list", "--topic", "orders", "--store", store) == [], "it is a prefix"
    assert "Say which rules" in run("acls", "remove", "--store", store, code=2)
    assert len(run("acls", "remove", "--principal", "User:alice", "--store", store)["removed"]) == 2
    assert len(run("acls", "list", "--store", store)) == 1
    assert len(run("acls", "remove", "--all", "--store", store)["removed"]) == 1


@pytest.mark.parametrize(
    "arguments", [(), ("--principal", "User:a"), ("--principal", "a", "--operation", "read", "--topic", "t")]
)
def test_half_a_rule_is_refused(store: str, arguments: tuple[str, ...]) -> None:
    run("acls", "add", *arguments, "--store", store, code=2)


@pytest.fixture
def guarded(store: str) -> Iterator[Broker]:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with Broker(store=store, settings=settings) as broker:
        yield broker


def test_rules_and_users_through_a_broker(guarded: Broker, store: str) -> None:
    where = ("--bootstrap", guarded.bootstrap_servers)
    run("acls", "add", *RULE, *where)
    [row] = run("acls", "list", *where)
    assert row == run("acls", "list", "--store", store)[0]
    assert len(run("acls", "remove", *RULE, *where)["removed"]) == 1
    assert run("acls", "list", *where) == []
    run("users", "add", "alice", "--password-stdin", *where, stdin="pencil-9")
    assert run("users", "list", *where) == run("users", "list", "--store", store)
    assert len(run("users", "remove", "alice", *where)["mechanisms"]) == 2
    assert run("users", "list", *where) == []
    assert b"pencil-9" not in stored_bytes(store)


def test_without_an_authorizer_rules_are_refused(store: str) -> None:
    with Broker(store=store) as broker:
        said = run("acls", "add", *RULE, "--bootstrap", broker.bootstrap_servers, code=1)
    assert "SECURITY_DISABLED" in said
