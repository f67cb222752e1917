"""Running seeds: one, or many at once."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import sys
import warnings
from collections.abc import Iterable, Iterator
from functools import partial

from simulation.broken import broken as broken_brokers
from simulation.scene import Outcome, Scene

LINES_SHOWN = 60


def play(
    seed: int,
    broken: str | None = None,
    seconds: float | None = None,
    kind: str | None = None,
    keep: int = LINES_SHOWN,
) -> Outcome:
    """Run one seed."""
    with broken_brokers(broken):
        if not gc.get_freeze_count():
            # What is there for good, the modules above all, need not be looked at after each seed.
            gc.collect()
            gc.freeze()
        with _end_of_the_world():
            return Scene(seed, seconds=seconds, kind=kind, keep=keep).run()


@contextlib.contextmanager
def _end_of_the_world() -> Iterator[None]:
    """Letting go of coroutines in the middle of things makes some of them complain."""
    yield
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    finally:
        sys.unraisablehook = hook


def play_all(
    seeds: Iterable[int],
    jobs: int,
    broken: str | None = None,
    seconds: float | None = None,
    kind: str | None = None,
) -> Iterator[Outcome]:
    """Run seeds, several at once, each as it ends."""
    one = partial(play, broken=broken, seconds=seconds, kind=kind)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=4)
