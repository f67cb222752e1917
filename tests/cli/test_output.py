"""What tables show of names: all of them, and only as text."""

from __future__ import annotations

import pytest

from penstock.cli.output import show


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
