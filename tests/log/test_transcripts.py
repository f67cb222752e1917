"""Transcripts that a reviewer can read: what a partition answers to producers, step by step.

To write one, leave out the answers and run with PENSTOCK_REWRITE=1; then read what it says.
"""

import os
from pathlib import Path

import pytest

from tests.log.transcript import Transcript

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    expected = path.read_text()
    actual = Transcript().run(expected)
    if os.environ.get("PENSTOCK_REWRITE"):
        path.write_text(actual)
    assert actual == expected or os.environ.get("PENSTOCK_REWRITE")
