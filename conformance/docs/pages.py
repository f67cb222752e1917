"""A page of Markdown as the steps that a reader would take.

A fenced block is one of these:

- `bash`, `python` without a title: it is run, in a terminal, in the page's directory. `cd` and `export` of one block
  hold for the next, as in a reader's terminal.
- any block with `title="NAME"`: the file NAME.
- `text` directly behind a block that is run: what the block prints. `...` stands for anything within a line, and for
  any lines where it stands alone.
- anything else needs a reason why it is not run.

Comments before a block, or alone, speak to the runner, and others are refused, so that a slip does not hide a block:

    <!-- not run: REASON -->   the next block is not run, for a reason that a reader would accept
    <!-- background: NAME -->  the next block goes on in a terminal of its own, once it has printed what is shown
    <!-- stop: NAME -->        Ctrl-C in that terminal, and a wait until all has ended there
    <!-- kill: NAME -->        kill -9 of all that runs there
    <!-- exit code: N -->      the next block ends so
    <!-- until: N s -->        the next block is repeated until it prints what is shown, for so long
    <!-- at most: N s -->      the next block may take so long
    <!-- heavy -->             the page takes minutes or large parts: the proof runs it, `make test` does not
    <!-- parts: NAME ... -->   what is put into the page's directory first (`parts.py`)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS_MAX = 60.0
"""For a block that does not say how long it may take."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w-]*)(?P<rest>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->")
_MARK = re.compile(
    r"(?P<word>not run|background|stop|kill|exit code|until|at most|heavy|parts)(?:: (?P<value>.+))?"
)
_SECONDS = re.compile(r"(\d+) s")
_GENERATED = "written by"
"""How a comment begins that says where a page comes from."""


class PageError(Exception):
    """A page that cannot be run as it is written. The message says where and why."""


@dataclass(slots=True)
class Block:
    line: int
    language: str
    text: str
    title: str = ""
    reason: str = ""
    """Why it is not run."""
    background: str = ""
    exit_code: int = 0
    seconds_max: float = SECONDS_MAX
    until_s: float = 0.0
    shown: str | None = None
    """What it prints, as the page says."""


@dataclass(frozen=True, slots=True)
class Stop:
    line: int
    name: str
    kill: bool


@dataclass(slots=True)
class Page:
    path: Path
    steps: list[Block | Stop] = field(default_factory=list)
    heavy: bool = False
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def blocks(self) -> list[Block]:
        return [step for step in self.steps if isinstance(step, Block)]


def paths() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def read(path: Path) -> Page:
    page = Page(path)
    marks: dict[str, str] = {}
    last: Block | None = None
    for line, kind, content in _pieces(path.read_text(encoding="utf-8")):
        where = f"{path.name}:{line}"
        if kind == "comment":
            word, value = _mark(where, content)
            if word == "heavy":
                page.heavy = True
            elif word == "parts":
                page.parts = tuple(value.split())
            elif word in ("stop", "kill"):
                page.steps.append(Stop(line, value, word == "kill"))
            else:
                marks[word] = value
        elif kind == "prose":
            last = None
            if marks:
                raise PageError(f"{where}: {next(iter(marks))!r} is said of a block, and no block follows.")
        else:
            block = _block(where, line, content)
            if block.language == "text" and not block.title and not marks and last is not None:
                last.shown = block.text
                last = None
                continue
            last = _marked(where, block, marks)
            page.steps.append(block)
            marks = {}
    return page


def _pieces(text: str) -> Iterator[tuple[int, str, str]]:
    """Comments, lines of prose and blocks, each with the number of its (first) line."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if fence := _FENCE.match(line):
            indent, ticks = len(fence["indent"]), fence["ticks"]
            body: list[str] = []
            for _, inner in lines:
                if inner.strip() == ticks:
                    break
                body.append(inner[indent:] if not inner[:indent].strip() else inner)
            else:
                raise PageError(f"line {number}: the block has no end.")
            yield number, "block", "\n".join([fence["language"] + " " + fence["rest"], *body]) + "\n"
        elif comments := _COMMENT.findall(line):
            for comment in comments:
                if not comment.lower().startswith(_GENERATED):
                    yield number, "comment", comment
        elif line.strip():
            yield number, "prose", line


def _mark(where: str, comment: str) -> tuple[str, str]:
    found = _MARK.fullmatch(comment)
    if found is None or (found["value"] is None) != (found["word"] == "heavy"):
        raise PageError(f"{where}: the runner does not know the comment {comment!r}.")
    return found["word"], found["value"] or ""


def _block(where: str, line: int, content: str) -> Block:
    head, _, text = content.partition("\n")
    language, _, rest = head.partition(" ")
    title = _TITLE.search(rest)
    if title and (title[1].startswith("/") or ".." in title[1]):
        raise PageError(f"{where}: {title[1]} is not a file in the page's directory.")
    return Block(line, language, text, title[1] if title else "")


def _marked(where: str, block: Block, marks: dict[str, str]) -> Block | None:
    """Fill in what the comments say. Gives the block if it is run, so that what it prints may follow."""
    block.reason = marks.get("not run", "")
    block.background = marks.get("background", "")
    block.exit_code = int(marks.get("exit code", "0"))
    block.until_s = _seconds(where, marks, "until", 0.0)
    block.seconds_max = _seconds(where, marks, "at most", SECONDS_MAX)
    if block.reason or block.title:
        return None
    if block.language not in ("bash", "python"):
        raise PageError(
            f"{where}: a {block.language or 'nameless'} block is neither run, nor a file (title=...), nor what "
            "the block before it prints; say why with <!-- not run: REASON -->."
        )
    return block


def _seconds(where: str, marks: dict[str, str], word: str, default: float) -> float:
    if word not in marks:
        return default
    found = _SECONDS.fullmatch(marks[word])
    if found is None:
        raise PageError(f"{where}: {word!r} takes seconds, such as '20 s'.")
    return float(found[1])
