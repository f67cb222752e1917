"""Histories that a reviewer can read: see `transcript` for the language."""

from pathlib import Path

import pytest

from .transcript import Transcript

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    assert Transcript().run(text) == text


def test_there_are_transcripts() -> None:
    assert TRANSCRIPTS
