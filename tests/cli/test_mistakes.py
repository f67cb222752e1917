"""What is wrong with a command itself is told before a cluster is looked for, with exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.app import app


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("topics list --bootstrap 127.0.0.1", "HOST:PORT, with a port of 1 to 65535, not '127.0.0.1'"),
        ("topics list --bootstrap 127.0.0.1:99999", "not '127.0.0.1:99999'"),
        ("topics list --bootstrap 127.0.0.1:0", "not '127.0.0.1:0'"),
        ("topics list --bootstrap a:9092,b:\N{SUPERSCRIPT TWO}", "not 'b:\N{SUPERSCRIPT TWO}'"),
        ("topics copy one two --to-bootstrap elsewhere", "not 'elsewhere'"),
        ("topics list --command-config no-such-file", "no-such-file cannot be read: No such file"),
        ("topics list --command-config wrong.properties", "security.protocol"),
        ("console --command-config wrong.properties", "security.protocol"),
        ("groups reset-offsets g --all-topics --to-current --export --json", "--export prints CSV"),
        ("consume orders --max -1", "-1 is not in the range x>=0"),
        ("topics tail orders --max -1", "-1 is not in the range x>=0"),
        ("acls add --principal User:bob", "A rule needs --principal, --operation and a resource"),
        ("groups reset-offsets g --all-topics --by-duration 1h", "A duration is PnDTnHnMnS"),
        ("groups reset-offsets g --all-topics --by-duration PT" + "9" * 400 + "S", "A duration is"),
        ("groups reset-offsets g --all-topics --to-datetime 1700000000000", "A date and time is"),
        ("groups reset-offsets g --all-topics --to-datetime soon", "A date and time is"),
        ("groups reset-offsets g --all-topics --to \N{SUPERSCRIPT TWO}", "--to takes earliest"),
        ("groups reset-offsets g --topic orders:\N{SUPERSCRIPT TWO} --to-latest", "--topic takes TOPIC or"),
        ("groups reset-offsets g --from-file wrong.properties", "Line 1 is not topic,partition,offset"),
        ("groups reset-offsets g --from-file latin", "Line 1 is not topic,partition,offset"),
        ("acls remove", "Say which rules to remove, or --all."),
        ("users add bob", "Give the password by --password-stdin"),
    ],
)
def test_a_mistake(line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.properties").write_text("security.protocol=TLS\n")
    Path("latin").write_bytes(b"\xfcber,0,\n")
    result = CliRunner().invoke(app, line.split())
    assert words in result.stderr
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_mistake_in_a_variable() -> None:
    result = CliRunner().invoke(app, ["topics", "list"], env={"PENSTOCK_BOOTSTRAP": "nowhere"})
    assert "not 'nowhere'" in result.stderr
    assert result.exit_code == 2


def test_lists_of_commands_have_whole_sentences() -> None:
    for group in ([], ["topics"], ["groups"], ["transactions"], ["store"]):
        result = CliRunner().invoke(app, [*group, "--help"])
        listed = result.output.partition("Commands:")[2]
        assert "..." not in listed
        assert listed.rstrip().endswith(".")
