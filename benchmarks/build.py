"""Compile the programs in `native/` if their sources are newer than the built programs."""

import os
import shutil
import subprocess
from pathlib import Path

from conformance.parts import PartMissing

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native"
OUT = HERE / "out"
BIN = OUT / "bin"


def c_program(name: str, *flags: str) -> Path:
    """`native/NAME.c` as a program; the headers beside it count as its sources."""
    source = NATIVE / f"{name}.c"
    program = BIN / name
    if fresh(program, source, *NATIVE.glob("*.h")):
        return program
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise PartMissing(
            f"{name} cannot be built: no C compiler on the PATH (cc, gcc or clang, or name one in CC)."
        )
    # Others may build or run it at the same time: it appears whole or not at all.
    unfinished = program.with_name(f"{name}.{os.getpid()}")
    run(f"{name}", [compiler, "-O2", "-o", str(unfinished), str(source), *flags], NATIVE)
    unfinished.replace(program)
    return program


def fresh(product: Path, *sources: Path) -> bool:
    """True when the product is newer than each of its sources."""
    if not product.exists():
        product.parent.mkdir(parents=True, exist_ok=True)
        return False
    built = product.stat().st_mtime
    return all(source.stat().st_mtime < built for source in sources)


def run(what: str, command: list[str], where: Path) -> None:
    """Run one build step; its last words become the one sentence that says why it failed."""
    if shutil.which(command[0]) is None:
        raise PartMissing(f"{what} cannot be built: {command[0]} is not on the PATH.")
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        why = "; ".join(line.strip() for line in done.stderr.strip().splitlines()[-4:])
        raise PartMissing(
            f"{what} cannot be built: {Path(command[0]).name} ended with {done.returncode}: {why}"
        )
