"""What a command printed, beside what the page shows."""

import difflib
import re

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[()][0-9A-B]")
_ERASED = re.compile(r"[^\n]*\n(?:\r|\x1b\[\?25[hl])*\x1b\[1A\x1b\[2K")
"""A line, and the order to go back and erase it, as progress is shown."""


def plain(printed: str) -> list[str]:
    """The lines as a terminal leaves them: without colours, and without what was written over."""
    lines = [
        line.rstrip("\r").rpartition("\r")[2].expandtabs().rstrip()
        for line in _ESCAPES.sub("", _ERASED.sub("", printed)).split("\n")
    ]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return lines


def agrees(printed: str, shown: str, may_go_on: bool = False) -> bool:
    wanted = [line.rstrip() for line in shown.strip("\n").split("\n")]
    return _fits(plain(printed), [*wanted, "..."] if may_go_on else wanted)


def _fits(lines: list[str], wanted: list[str]) -> bool:
    # reachable[i]: the wanted lines so far can stand for the first i lines.
    reachable = [True] + [False] * len(lines)
    for want in wanted:
        if want.strip() == "...":
            first = reachable.index(True) if True in reachable else len(reachable)
            reachable = [i >= first for i in range(len(reachable))]
            continue
        fits = re.compile(".*".join(re.escape(part) for part in want.split("..."))).fullmatch
        reachable = [False] + [
            before and fits(line) is not None for before, line in zip(reachable, lines, strict=False)
        ]
    return reachable[-1]


def difference(printed: str, shown: str) -> str:
    wanted = shown.strip("\n").split("\n")
    return "\n".join(difflib.unified_diff(wanted, plain(printed), "the page shows", "printed", lineterm=""))
