"""Runs the pages and says what held; see the package's description."""

import argparse
import sys
import time
from collections.abc import Sequence

from conformance.docs.isolation import Unable, run
from conformance.docs.pages import Page, PageError, paths, read
from conformance.docs.parts import fetch
from conformance.parts import NOT_RUN, PartMissing


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.docs", description="Run the commands and snippets of the documentation."
    )
    parser.add_argument("names", nargs="*", metavar="PAGE", help="some of them, such as tutorial")
    parser.add_argument(
        "--list", action="store_true", help="say what is run and what is not, and run nothing"
    )
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.names) - {path.stem for path in paths()}:
        parser.error(f"there is no page {sorted(unknown)[0]!r}")
    try:
        pages = [read(path) for path in paths() if not chosen.names or path.stem in chosen.names]
    except PageError as wrong:
        print(f"FAILED: {wrong}")
        return 1
    if chosen.list:
        for page in pages:
            _list(page)
        return 0
    return _run(pages)


def _list(page: Page) -> None:
    left_out = [block for block in page.blocks if block.reason]
    print(f"{page.path.name}: {len(page.blocks) - len(left_out)} run, {len(left_out)} not run")
    for block in left_out:
        print(f"  line {block.line}, not run: {block.reason}")


def _run(pages: Sequence[Page]) -> int:
    failed: list[str] = []
    lacking = 0
    done = {"run": 0, "file": 0, "stop": 0, "not run": 0}
    for page in pages:
        if not page.steps:
            continue
        began = time.monotonic()
        try:
            fetch(page.parts)
            steps = run(page)
        except (PartMissing, Unable) as why:
            lacking += 1
            print(f"not run: {page.path.name}: {why}", flush=True)
            continue
        except PageError as wrong:
            failed.append(page.name)
            print(f"FAILED: {wrong}", flush=True)
            continue
        for step in steps:
            done[step.did] += 1
        if problems := [step for step in steps if step.problem]:
            failed.append(page.name)
            for step in problems:
                print(f"FAILED: {page.path.name}:{step.line}: {step.problem}", flush=True)
        else:
            count = sum(step.did != "not run" for step in steps)
            print(
                f"{page.path.name}: {count} steps held, {len(steps) - count} not run ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
        for step in steps:
            if step.reason:
                print(f"  line {step.line} is not run: {step.reason}")
    print(
        f"{done['run']} blocks run, {done['file']} files written, {done['not run']} blocks not run (each with its "
        f"reason), {len(failed)} pages failed, {lacking} pages not run"
    )
    if failed:
        return 1
    return NOT_RUN if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
