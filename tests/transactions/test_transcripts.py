from pathlib import Path

import pytest

from tests.transactions.transcript import check_transcript

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check_transcript(path)


def test_there_are_transcripts() -> None:
    assert TRANSCRIPTS
