"""Descriptors that tests leave open are told."""

import os

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
