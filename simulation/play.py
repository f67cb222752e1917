"""Running seeds: one, or many at once."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import msgspec

from simulation.broken import broken as broken_brokers
from simulation.scene import Outcome, Scene
from simulation.tempo import quick

LINES_SHOWN = 60
_LEFT: list[Scene] = []
SEED_SECONDS_MAX = 300.0
"""A seed takes a second or two; none that ends takes this long, however busy the machine."""


def play(
    seed: int,
    broken: str | None = None,
    seconds: float | None = None,
    kind: str | None = None,
    keep: int = LINES_SHOWN,
    *,
    tidy: bool = True,
    only: tuple[str, ...] = (),
) -> Outcome:
    """Run one seed. Not `tidy`: for a process that ends soon, which leaves the tidying to the system."""
    with broken_brokers(broken), quick():
        scene = Scene(seed, seconds=seconds, kind=kind, keep=keep, only=only)
        outcome = scene.run()
        if not tidy:
            _LEFT.append(scene)
            return outcome
        with _quietly():
            scene.world.close()
            del scene
            # What coroutines do as they end keeps all of their world once more.
            gc.collect()
            gc.collect()
        return outcome


def prepare() -> None:
    """Before a process runs seeds: what is there for good, the modules above all, need not be looked at when
    memory is tidied up, and nobody else tidies up."""
    gc.collect()
    gc.freeze()
    gc.disable()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Letting go of coroutines in the middle of things makes some of them complain."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)


def play_all(
    seeds: range,
    jobs: int,
    broken: str | None = None,
    seconds: float | None = None,
    kind: str | None = None,
    only: tuple[str, ...] = (),
) -> Iterator[Outcome]:
    """Run seeds, several at once, each outcome as it comes. Closing the iterator ends the processes."""
    outcomes: queue.Queue[Outcome | None] = queue.Queue()
    options = [broken or "", "" if seconds is None else str(seconds), kind or "", ",".join(only)]
    workers = [
        _worker([str(seeds.start + n), str(seeds.stop), str(jobs), *options], outcomes) for n in range(jobs)
    ]
    try:
        left = jobs
        while left:
            outcome = outcomes.get(timeout=SEED_SECONDS_MAX)
            if outcome is None:
                left -= 1
            else:
                yield outcome
        if any(worker.wait() for worker in workers):
            raise RuntimeError("a process that ran seeds ended before its time")
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)  # With the child that it has at the moment.
            worker.wait()


def _worker(arguments: list[str], outcomes: queue.Queue[Outcome | None]) -> subprocess.Popen[bytes]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "simulation.worker", *arguments],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )

    def listen() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            outcomes.put(msgspec.json.decode(line, type=Outcome))
        outcomes.put(None)

    threading.Thread(target=listen, daemon=True).start()
    return worker
