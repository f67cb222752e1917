"""What tables show of names: all of them, and only as text."""

from __future__ import annotations

import pytest

from penstock.cli.output import counted, show


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[/a]", "[/a]"),
        ("[red]x[/red]", "[red]x[/red]"),
        (":smile:", ":smile:"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("two\nlines", "two\\nlines"),
        ("\u202eback", "\\u202eback"),
        ("\u00fcber \u65e5\u672c", "\u00fcber \u65e5\u672c"),
    ],
)
def test_a_name_is_neither_markup_nor_a_command_to_the_terminal(
    capsys: pytest.CaptureFixture[str], name: str, shown: str
) -> None:
    show([{"group": name}], {"group": "GROUP"}, as_json=False)
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.strip() == "GROUP"
    assert row.rstrip() == shown


def test_nothing_of_a_long_name_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name = "".join(f"{number:03}" for number in range(60))
    show([{"name": name, "lag": 7}], {"name": "NAME", "lag": "LAG"}, as_json=False)
    _heading, *lines = capsys.readouterr().out.splitlines()
    assert "".join(line.split()[0] for line in lines) == name


def test_one_is_not_several() -> None:
    assert [counted(number, "broker") for number in range(3)] == ["0 brokers", "1 broker", "2 brokers"]
