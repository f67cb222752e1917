"""The glossary names modules that exist, in the order of the alphabet."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (?!word |---)(?P<word>[^|]+) \|.*\| (?P<owners>[^|]+) \|$", re.MULTILINE)
ROWS = [found.groupdict() for found in ROW.finditer((ROOT / "docs" / "glossary.md").read_text())]


def test_each_word_is_owned_by_a_module_that_exists() -> None:
    assert ROWS
    for row in ROWS:
        owners = re.findall(r"`([^`]+)`", row["owners"])
        assert owners, row["word"]
        for owner in owners:
            assert (ROOT / "src" / "penstock" / owner).is_file(), f"{row['word']}: {owner}"


def test_words_are_sorted_and_stand_once() -> None:
    words = [row["word"].lower() for row in ROWS]
    assert words == sorted(set(words))
