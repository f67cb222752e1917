"""The documents name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
_FILE = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|svg|toml))")
_MADE = "conformance/out/"
"""Proofs write there."""
_CHANGES = "CHANGELOG.md"
"""What it says was true of its version."""


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if path.name != _CHANGES], ids=lambda path: path.name
)
def test_files_that_a_document_names_exist(document: Path) -> None:
    named = {name for name in _FILE.findall(document.read_text()) if not name.startswith(_MADE)}
    missing = [
        name for name in named if not any((ROOT / base / name).exists() for base in ("", "src/penstock"))
    ]
    assert not missing


def test_the_map_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = [path.name for path in (ROOT / "src/penstock").iterdir() if (path / "__init__.py").exists()]
    assert rooms
    assert [room for room in rooms if f"`{room}/" not in text] == []


@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if path.parent == ROOT], ids=lambda path: path.name
)
def test_links_lead_to_files(document: Path) -> None:
    """Those in docs/ are checked when the site is built."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", document.read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
