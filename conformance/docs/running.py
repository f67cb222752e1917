"""Runs the steps of one page in a directory, one after the other, as a reader would."""

import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.docs.comparing import agrees, difference, plain
from conformance.docs.pages import ROOT, Block, Page, PageError, Stop
from conformance.docs.terminal import Terminal

_POLL_S = 0.05
_PAUSE_S = 0.5
"""Between two runs of a block that is repeated until it prints what is shown."""
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "JAVA_HOME", "TMPDIR")


@dataclass(frozen=True, slots=True)
class Step:
    """What became of one step of a page."""

    line: int
    did: str
    """run, file, stop, or not run"""
    problem: str = ""
    """Empty: it did what the page says."""
    reason: str = ""

    def as_json(self) -> dict[str, str | int]:
        return asdict(self)


def environment(home: Path) -> dict[str, str]:
    """That of somebody who has installed Penstock and nothing else of ours."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    programs = (str(Path(sys.executable).parent), str(home / "bin"), kept.get("PATH", os.defpath))
    path = os.pathsep.join(programs)
    return {
        **kept,
        "PATH": path,
        "HOME": str(home),
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT / "src"),
        # In a namespace the machine's own name has no address.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class Reader:
    """Somebody who follows a page to the letter."""

    def __init__(self, page: Page, directory: Path, variables: Mapping[str, str]) -> None:
        self._page = page
        self._state = directory / "state"
        self._state.mkdir()
        self._here = directory / "here"
        self._here.mkdir()
        self._home = directory / "home"
        self._home.mkdir()
        self._environment = {**environment(self._home), **variables}
        self._remembered: dict[str, Terminal] = {}
        self._past: list[Terminal] = []

    @property
    def here(self) -> Path:
        return self._here

    def follow(self) -> list[Step]:
        """All steps, up to the first that does not do what the page says: the rest would only follow from it."""
        done: list[Step] = []
        try:
            for step in self._page.steps:
                done.append(self._take(step))
                if done[-1].problem:
                    break
            else:
                done += self._ended_early()
        finally:
            for terminal in (*self._remembered.values(), *self._past):
                terminal.close()
        return done

    def _take(self, step: Block | Stop) -> Step:
        if isinstance(step, Stop):
            return self._stop(step)
        if step.reason:
            return Step(step.line, "not run", reason=step.reason)
        if step.title:
            file = self._here / step.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(step.text, encoding="utf-8")
            return Step(step.line, "file")
        if step.background:
            return Step(step.line, "run", self._background(step))
        return Step(step.line, "run", self._repeat(step) if step.until_s else self._run(step))

    def _open(self, block: Block, text: str = "") -> Terminal:
        script = self._state / f"{block.line}.{'py' if block.language == 'python' else 'sh'}"
        if block.language == "python":
            script.write_text(block.text, encoding="utf-8")
            return Terminal([sys.executable, str(script)], self._here, self._environment)
        known, place = self._state / "environment", self._state / "place"
        script.write_text(
            f"[ -e {shlex.quote(str(known))} ] && . {shlex.quote(str(known))}\n"
            f'[ -e {shlex.quote(str(place))} ] && cd "$(cat {shlex.quote(str(place))})"\n'
            + (
                ""
                if block.background
                else f"_leave() {{ declare -px > {shlex.quote(str(known))}; pwd > {shlex.quote(str(place))}; }}\n"
                "trap _leave EXIT\n"
            )
            + "set -eo pipefail\n"
            + block.text,
            encoding="utf-8",
        )
        return Terminal(["bash", str(script)], self._here, self._environment)

    def _run(self, block: Block) -> str:
        terminal = self._open(block)
        self._past.append(terminal)
        code = terminal.wait(block.seconds_max)
        if code is None:
            terminal.close()
            return f"it did not end within {block.seconds_max:.0f} s, and had printed:\n{_told(terminal)}"
        if code != block.exit_code:
            return f"it ended with {code}, not {block.exit_code}, and printed:\n{_told(terminal)}"
        if block.shown is not None and not agrees(terminal.printed, block.shown):
            return f"it prints something else:\n{difference(terminal.printed, block.shown)}"
        return ""

    def _repeat(self, block: Block) -> str:
        if block.shown is None:
            raise PageError(f"{self._page.path.name}:{block.line}: 'until' needs what the block is to print.")
        end = time.monotonic() + block.until_s
        while (problem := self._run(block)) and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        return problem

    def _background(self, block: Block) -> str:
        if block.shown is None:
            raise PageError(
                f"{self._page.path.name}:{block.line}: a block in the background needs the output that says "
                "that it is ready."
            )
        if block.background in self._remembered:
            raise PageError(f"{self._page.path.name}:{block.line}: {block.background} runs already.")
        terminal = self._open(block)
        self._remembered[block.background] = terminal
        end = time.monotonic() + block.seconds_max
        while not agrees(terminal.printed, block.shown, may_go_on=True):
            if terminal.ended:
                code = terminal.wait(1)
                # It may have said so in its last moment.
                if agrees(terminal.printed, block.shown, may_go_on=True):
                    break
                return f"it ended with {code}, and printed:\n{_told(terminal)}"
            if time.monotonic() > end:
                return f"it prints something else:\n{difference(terminal.printed, block.shown)}"
            time.sleep(_POLL_S)
        return ""

    def _stop(self, step: Stop) -> Step:
        terminal = self._remembered.pop(step.name, None)
        if terminal is None:
            raise PageError(f"{self._page.path.name}:{step.line}: nothing runs under the name {step.name!r}.")
        self._past.append(terminal)
        if terminal.ended:
            return Step(step.line, "stop", f"{step.name} had ended before, and printed:\n{_told(terminal)}")
        if not terminal.stop(step.kill):
            return Step(step.line, "stop", f"{step.name} did not end, and had printed:\n{_told(terminal)}")
        return Step(step.line, "stop")

    def _ended_early(self) -> list[Step]:
        """What goes on in the background must still do so at the end of the page."""
        lines = {block.background: block.line for block in self._page.blocks}
        return [
            Step(lines[name], "run", f"{name} ended before the page did, and printed:\n{_told(terminal)}")
            for name, terminal in self._remembered.items()
            if terminal.ended
        ]


def _told(terminal: Terminal) -> str:
    return "\n".join(plain(terminal.printed)[-40:])
