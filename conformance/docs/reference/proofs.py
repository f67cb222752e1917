"""docs/proofs.md: every proof, what it shows (the README's row) and what it runs (`conformance/proofs.py`)."""

import re

from conformance.proofs import EACH_PUSH, PROOFS, ROOT

_ROW = re.compile(r"^\| `make ([a-z0-9-]+)` \| (.*?) \| (.*?) ?\|$", re.MULTILINE)

_INTRODUCTION = """\
# Proofs

Written by `make reference` from `conformance/proofs.py` and the table in `README.md`; a test fails while they differ.

Each row is a command of the repository. It ends with 0 if the proof held, with 3 if it lacked a part that could not be
had, and with anything else if it failed. `make nightly` runs all of them in this order, goes on when one fails, and
writes one report. [Promises](promises.md) says which of them stands behind which promise.

| command | what it shows | needs | runs | on each change |
|---|---|---|---|---|
"""


def markdown() -> str:
    shown = {name: (what, needs) for name, what, needs in _ROW.findall((ROOT / "README.md").read_text())}
    shown["check"] = ("lint, types and import direction", "")
    rows = []
    for proof in PROOFS:
        what, needs = shown[proof.name]
        modules = dict.fromkeys(
            module for step in proof.steps for module in re.findall(r"python -m ([\w.]+)", step)
        )
        runs = ", ".join(f"`{module}`" for module in modules)
        pushed = "yes" if proof.name in EACH_PUSH else ""
        rows.append(f"| `make {proof.name}` | {_plain(what)} | {needs} | {runs} | {pushed} |\n")
    return _INTRODUCTION + "".join(rows)


def _plain(what: str) -> str:
    """Without links, which lead from the README's place."""
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", what)
