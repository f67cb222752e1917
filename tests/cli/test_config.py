"""`penstock config check` says what `penstock start --config` would do with a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.app import app


def check(path: Path, *options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["config", "check", str(path), *options])
    return result.exit_code, result.stdout, result.stderr


def test_a_good_file_and_what_it_sets(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('durability = "fsync"\n[broker]\nid = 7\n')
    code, output, problem = check(path, "--set", "num.partitions=3")
    assert (code, problem) == (0, "")
    assert {row["name"]: row["value"] for row in json.loads(output)} == {
        "broker.id": "7", "durability": "fsync", "num.partitions": "3",
    }  # fmt: skip


def test_files_of_windows_may_begin_with_a_mark(tmp_path: Path) -> None:
    for name in ("broker.toml", "server.properties"):
        path = tmp_path / name
        path.write_text("broker.id=7\r\n", encoding="utf-8-sig")
        code, output, problem = check(path)
        assert (code, json.loads(output), problem) == (0, [{"name": "broker.id", "value": "7"}], ""), name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("durability = 'disk'", "String must be one of: os, fsync"),
        ("no.such.setting = 1", "is not a setting"),
        ("store = 'ftp://x'", "A store is a directory, or a URL that begins with s3://, gs:// or az://."),
        ("store = 's3://'", "The URL names no bucket."),
        ("store = ''", "String must be a directory or a URL."),
        ("metadata = 'here'", "The metadata log is kept in the store, or in etcd at etcd://HOST:PORT."),
        ("not toml", "is not TOML"),
        ("listeners = 'PLAINTEXT://0.0.0.0:9092'", "--insecure"),
        ("http.address = '0.0.0.0:80'", "--insecure"),
        ("'http.address' = '127.0.0.1:80'\n'metrics.token.file' = '/no/such'", "metrics.token.file /no/such"),
    ],
)
def test_a_bad_file_is_refused_with_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text + "\n")
    code, output, problem = check(path)
    assert (code, output) == (2, "")
    assert sentence in problem
    assert problem.count("\n") == 1


def test_a_missing_file(tmp_path: Path) -> None:
    assert check(tmp_path / "none.toml")[0] == 2


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("metadata = 'etcd://user:hunter2@localhost:2379'\n")
    code, output, _problem = check(path)
    assert code == 0
    assert "hunter2" not in output
