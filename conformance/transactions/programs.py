"""Java programs of Kafka's own as processes, their output in a file, and what may befall a broker meanwhile."""

import contextlib
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance import parts
from conformance.transactions.places import Place
from penstock.testing.waiting import until

HEAP_MB = 256
END_WITHIN_S = 30.0


class Program:
    """One Java main class."""

    def __init__(self, name: str, classpath: str, *command: str) -> None:
        self.name = name
        self.folder = tempfile.TemporaryDirectory(prefix="conformance-java-")
        self.output = Path(self.folder.name) / "output.log"
        self._command = [*parts.java(classpath, heap_mb=HEAP_MB), *command]
        self._start()

    def _start(self, *options: str) -> None:
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._command, *options], stdout=output, stderr=subprocess.STDOUT, cwd=self.folder.name
            )

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def await_said(self, words: str, within_s: float) -> None:
        until(lambda: words in self.said or self.code is not None, within_s, f"{words!r} of {self.name}")

    def await_end(self, within_s: float) -> int:
        until(lambda: self.code is not None, within_s, f"the end of {self.name}", every_s=0.2)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def restart(self, *options: str) -> None:
        """kill -9, and the same again, with these options besides."""
        self.kill()
        self._start(*options)

    def stop(self) -> None:
        if self.code is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.code is None:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()


def bounce(place: Place, broker: int, rest_s: float = 1.0) -> None:
    """kill -9 of a broker, and a start a little later."""
    if place.cluster is not None:
        place.cluster[broker].kill()
        time.sleep(rest_s)
        place.cluster[broker].start()
    elif place.server is not None:
        place.server.kill()
        place.server.start()


def difference(wanted: Sequence[bytes], found: Counter[bytes]) -> list[str]:
    """Each once, and nothing else."""
    expected = Counter(wanted)
    problems = []
    for what, some in (("lost", expected - found), ("there without need or twice", found - expected)):
        if some:
            values = ", ".join(map(repr, list(some)[:3]))
            problems.append(f"{some.total()} of {len(wanted)} records are {what}: {values}")
    return problems
