"""Descriptors that tests leave open are told."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.leftovers import left_open, open_descriptors


def test_what_is_left_open_is_told() -> None:
    before = open_descriptors()
    pipes = [os.pipe() for _ in range(30)]
    try:
        assert left_open(before, 40) == {"pipe:[N]": 60}
        assert not left_open(before, 60)
    finally:
        for end in (end for pipe in pipes for end in pipe):
            os.close(end)
    assert not left_open(before, 40)


LEAVING = """
import os

from tests.conftest import little_left_open

kept = []

def test_that_forgets():
    kept.extend(os.pipe() for _ in range({pipes}))

def test_that_is_innocent():
    pass
"""


def test_a_file_of_tests_that_leaves_many_open_fails(tmp_path: Path) -> None:
    for pipes, end in ((5, "2 passed"), (50, "2 passed, 1 error")):
        file = tmp_path / f"test_{pipes}.py"
        file.write_text(LEAVING.format(pipes=pipes))
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir"]
        done = subprocess.run(
            [*command, str(tmp_path), str(file)],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert re.search(rf"^{end} in", done.stdout, re.MULTILINE), done.stdout + done.stderr
        said = "the tests of this file left 100 descriptors open: 100 of pipe:[N]"
        assert (said in done.stdout) is (pipes == 50)
