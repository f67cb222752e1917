"""`consume` with formats, filters and starting points, `produce` from files, `topics alter` and `tail`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from penstock.admin import records as admin_records
from penstock.admin.filters import matching
from penstock.cli import formats
from penstock.cli.app import app
from penstock.cli.client import Client
from penstock.cli.sources import record_of_json
from penstock.testing import Broker
from penstock.testing.waiting import until
from penstock.wire.batch import Record
from tests.cli.test_commands import run, run_json

RECORD = Record(7, 1234, b"k", b"v\xff", (("a", b"1"), ("b", None)))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def lines(broker: Broker, *arguments: str) -> list[str]:
    result = run(broker, "consume", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("%t %p %o %T\\n", b"topic 3 7 1234\n"),
        ("%k|%K|%s|%S", b"k|1|v\xff|2"),
        ("%R%s", b"\0\0\0\x02v\xff"),
        ("%h", b"a=1,b="),
        ("100%% \\t\\x41\\\\%", b"100% \tA\\%"),
    ],
)
def test_formats_are_those_of_kcat(form: str, written: bytes) -> None:
    assert formats.compiled(form)("topic", 3, RECORD) == written


def test_what_is_not_there_has_the_length_minus_one() -> None:
    assert formats.compiled("[%k%K][%s%S]")("t", 0, Record(0, 0, None, None, ())) == b"[-1][-1]"
    assert formats.compiled("%R")("t", 0, Record(0, 0, None, None, ())) == b"\xff" * 4


@pytest.mark.parametrize("form", ["%x", "\\q"])
def test_unknown_parts_of_a_format_are_refused(form: str) -> None:
    with pytest.raises(click.UsageError):
        formats.compiled(form)


@pytest.mark.parametrize(
    ("keys", "greps", "fields", "headers", "matches"),
    [
        (["x", "k"], [], [], [], True),
        (["x"], [], [], [], False),
        ([], ["a.*3", "c"], [], [], True),
        ([], ["nothing"], [], [], False),
        ([], [], ["a.b=3", "$.c.0=x"], [], True),
        ([], [], ["a.b=4"], [], False),
        ([], [], ["a.b.c=4"], [], False),
        ([], [], [], ["h=1", "h"], True),
        ([], [], [], ["h=2"], False),
        (["k"], ["nothing"], [], [], False),
    ],
)
def test_filters(
    keys: list[str], greps: list[str], fields: list[str], headers: list[str], matches: bool
) -> None:
    record = Record(0, 0, b"k", b'{"a": {"b": 3}, "c": ["x"]}', (("h", b"1"),))
    wanted = matching(keys, greps, fields, headers)
    assert wanted is not None
    assert wanted(record) is matches


def test_consume_by_format_filter_and_starting_point(broker: Broker) -> None:
    run_json(broker, "topics", "create", "many")
    text = "".join(f'k{n % 3}:{{"n": {n}}}\n' for n in range(30))
    run_json(broker, "produce", "many", "--key-separator", ":", text=text)
    assert lines(broker, "many", "--from", "-2", "--format", "%o %k\\n") == ["28 k1", "29 k2"]
    assert lines(broker, "many", "--field", "n=17") == ['{"n": 17}']
    assert lines(broker, "many", "--key", "k0", "--max", "2", "--format", "%o\\n") == ["0", "3"]
    assert lines(broker, "many", "--grep", "9}$", "--format", "%o\\n") == ["9", "19", "29"]
    first = json.loads(lines(broker, "many", "--max", "1", "--json")[0])
    assert len(lines(broker, "many", "--from", f"@{first['timestamp']}")) == 30
    assert lines(broker, "many", "--from", "2999-01-01T00:00:00") == []
    assert lines(broker, "many", "--group", "g", "--key", "k1", "--max", "1") == ['{"n": 1}']
    assert lines(broker, "many", "--group", "g", "--format", "%o\\n")[0] == "2"
    result = run(broker, "consume", "many", "--from", "soon")
    assert result.exit_code == 2
    assert "Reading begins at" in result.output


def test_a_partition_that_is_not_there_is_said_at_once(broker: Broker) -> None:
    run(broker, "topics", "create", "numbered", "--partitions", "2")
    refused = run(broker, "consume", "numbered", "--partition", "1", "--partition", "2")
    assert refused.exit_code == 2
    assert "Topic numbered has 2 partitions; there is no 2." in refused.output


def test_produce_from_files_and_from_json(broker: Broker, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a\nb\n")
    two.write_bytes(b"c\n\xff\n")
    sent = run_json(broker, "produce", "filed", "--file", str(one), "--file", str(two), "--header", "h=1")
    assert sent["records"] == 4
    run_json(broker, "produce", "filed", "--file", str(two), "--whole", "--key", "two")
    printed = lines(broker, "filed", "--json")
    assert json.loads(printed[3])["value"] == {"base64": "/w=="}
    assert json.loads(printed[4])["key"] == "two"
    run_json(broker, "produce", "copied", "--input", "json", text="\n".join(printed) + "\n")
    copies = [json.loads(line) for line in lines(broker, "copied", "--json")]
    assert copies == [json.loads(line) | {"topic": "copied"} for line in printed]
    bad = run(broker, "produce", "copied", "--input", "json", text='{"value": null}\n[]\n')
    assert (bad.exit_code, "Line 2 is not a record in JSON" in bad.output) == (1, True)
    for line, words in (
        ('{"key": "k", "payload": "v"}', "it has no value; null is that of a record without one"),
        ("[" * 100_000, "it is too deep"),
    ):
        bad = run(broker, "produce", "copied", "--input", "json", text=line + "\n")
        assert (bad.exit_code, bad.stderr) == (1, f"Error: Line 1 is not a record in JSON: {words}.\n")
    far = '{"value": "v", "timestamp": 99999999999999999999}\n'
    assert run_json(broker, "produce", "far", "--input", "json", text=far)["records"] == 1


def test_a_field_is_looked_for_in_a_value_that_is_too_deep(broker: Broker) -> None:
    values = "[" * 100_000 + '\n{"a": 1}\n'
    run_json(broker, "produce", "deep", text=values)
    assert lines(broker, "deep", "--field", "a=1") == ['{"a": 1}']


def setting(broker: Broker, topic: str, name: str) -> tuple[str, str]:
    (found,) = (
        one for one in run_json(broker, "topics", "describe", topic, "--settings") if one["name"] == name
    )
    return found["value"], found["source"]


def test_topics_are_altered(broker: Broker) -> None:
    run_json(broker, "topics", "create", "altered")
    dry = ("topics", "alter", "altered", "--partitions", "3", "--config", "retention.ms=1000", "--dry-run")
    assert run_json(broker, *dry)["dry_run"] is True
    assert len(run_json(broker, "topics", "describe", "altered")) == 1
    run_json(broker, "topics", "alter", "altered", "--partitions", "3", "--config", "retention.ms=1000")
    assert len(run_json(broker, "topics", "describe", "altered")) == 3
    assert setting(broker, "altered", "retention.ms") == ("1000", "set for this topic")
    run_json(broker, "topics", "alter", "altered", "--unset", "retention.ms")
    both = run(broker, "topics", "alter", "altered", "--partitions", "2", "--config", "retention.ms=1000")
    assert (both.exit_code, "would not be an increase" in both.output) == (1, True)
    assert setting(broker, "altered", "retention.ms") == ("604800000", "default")
    for options, sentence in (
        (("--partitions", "2"), "partitions"),
        (("--config", "no.such=1"), "no.such"),
        (("--config", "retention.ms=1000", "--unset", "retention.mss"), "no setting 'retention.mss'"),
        ((), "Say what to change"),
    ):
        result = run(broker, "topics", "alter", "altered", *options)
        assert result.exit_code != 0
        assert sentence in result.output
    assert setting(broker, "altered", "retention.ms") == ("604800000", "default")


def test_a_topic_is_tailed(broker: Broker) -> None:
    run_json(broker, "topics", "create", "tailed")
    run_json(broker, "produce", "tailed", text="".join(f"{n}\n" for n in range(20)))
    command = [sys.executable, "-m", "penstock", "topics", "tail", "tailed", "-n", "2", "--max", "3"]
    with subprocess.Popen(
        [*command, "--bootstrap", broker.bootstrap_servers], stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        assert [tail.stdout.readline() for _ in range(2)] == ["18\n", "19\n"]
        run_json(broker, "produce", "tailed", "new")
        assert tail.stdout.read() == "new\n"
    assert tail.returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str) -> None:
    result = CliRunner().invoke(app, ["completion", shell])
    assert result.exit_code == 0
    assert "_PENSTOCK_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("start --config ", "file,"),
        ("store audit --store ", "file,"),
        ("topics list --command-config ", "file,"),
        ("start --broker", "plain,--brokers\nplain,--broker-id"),
    ],
)
def test_a_shell_completes_options_and_files(words: str, offered: str) -> None:
    line = f"penstock {words}"
    asked = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    result = CliRunner().invoke(app, env=asked, prog_name="penstock")
    assert result.stdout.strip() == offered


def test_lines_are_sent_as_they_come(broker: Broker) -> None:
    run_json(broker, "topics", "create", "trickle")
    where = ("--bootstrap", broker.bootstrap_servers)
    command = [sys.executable, "-m", "penstock", "produce", "trickle", *where]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        for text, read in ((b"a\nb\nno", ["a", "b"]), (b" end\n", ["a", "b", "no end"])):
            running.stdin.write(text)
            running.stdin.flush()
            until(lambda read=read: lines(broker, "trickle") == read, 30, "the lines")  # type: ignore[misc]
        told = json.loads(running.communicate(b"last", timeout=30)[0])
    assert told["records"] == 4
    assert lines(broker, "trickle") == ["a", "b", "no end", "last"]


def test_records_whose_answer_was_lost_are_not_stored_twice(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = admin_records.send_batch

    def twice(client: Client, topic: str, partition: int, batch: bytes, acks: int) -> int:
        real(client, topic, partition, batch, acks)
        return real(client, topic, partition, batch, acks)

    monkeypatch.setattr(admin_records, "send_batch", twice)
    told = run_json(broker, "produce", "once", "a", "b")
    assert (told["records"], told["last_offsets"]) == (2, {"0": 1})
    assert lines(broker, "once") == ["a", "b"]


def test_records_that_a_topic_takes_alone_are_not_refused_for_their_neighbours(
    broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    sent = [letter * size for letter, size in (("a", 400_000), ("b", 700_000), ("c", 10))]
    path.write_text("\n".join(sent))
    run_json(broker, "produce", "uneven", "--file", str(path))
    assert lines(broker, "uneven") == sent
    run_json(broker, "topics", "create", "narrow", "--config", "max.message.bytes=300")
    numbers = [f"{number:04}" for number in range(200)]
    assert run_json(broker, "produce", "narrow", *numbers)["last_offsets"] == {"0": 199}
    assert lines(broker, "narrow") == numbers


def test_a_failure_tells_how_much_is_stored(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("\n".join(['{"value": "1"}', '{"value": "2"}', "no JSON", '{"value": "3"}']))
    result = run(broker, "produce", "partly", "--input", "json", "--file", str(path))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Line 3 is not a record in JSON")
    assert result.stderr.endswith(" 2 records had been stored before.\n")
    assert lines(broker, "partly") == ["1", "2"]
    run_json(broker, "topics", "create", "tight", "--config", "max.message.bytes=300")
    result = run(broker, "produce", "tight", "a", "b" * 500, "c")
    assert result.stderr == (
        "Error: Sending to partition 0 of 'tight' was answered MESSAGE_TOO_LARGE. "
        "1 record had been stored before.\n"
    )
    assert lines(broker, "tight") == ["a"]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"headers": {"ab": 1}}, "its headers are not"),
        ({"headers": ["ab"]}, "its headers are not"),
        ({"headers": [[None, "b"]]}, "its headers are not"),
        ({"headers": 5}, "its headers are not"),
        ({"timestamp": True}, "its timestamp is not a number of milliseconds"),
        ({"timestamp": "2026-01-31"}, "its timestamp is not a number of milliseconds"),
        ({"timestamp": 1e3}, "its timestamp is not a number of milliseconds"),
    ],
)
def test_fields_of_json_that_cannot_be_meant_are_refused(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(click.ClickException, match=wrong):
        record_of_json(json.dumps({"value": "v"} | fields).encode(), 1)
