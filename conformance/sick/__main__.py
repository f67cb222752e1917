"""`python -m conformance.sick`: play the scenes, a line for each; ends with 1 if one failed."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from conformance import sick
from conformance.parts import PartMissing
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.sick import (
    scenes_disk,
    scenes_gone,
    scenes_hurt,
    scenes_late,
    scenes_refused,
    scenes_repair,
    scenes_rot,
    scenes_space,
)
from conformance.sick.disks import NoDisk
from conformance.sick.stage import SCENES, Failed, Scene, Skipped
from penstock.client import ClientError
from penstock.testing.waiting import Late

PLAYS = (
    scenes_rot,
    scenes_gone,
    scenes_hurt,
    scenes_disk,
    scenes_refused,
    scenes_late,
    scenes_space,
    scenes_repair,
)
"""Importing these modules filled SCENES."""


def play(scene: Scene) -> tuple[str, str]:
    """ok, failed or skipped; and the rest of its line."""
    began = time.monotonic()
    try:
        verdict, text = "ok", scene.play()
    except (Skipped, NoDisk, PartMissing) as why:
        verdict, text = "skipped", str(why)
    except (Failed, Late, ServerFailed, ClientError) as why:
        lines = str(why).splitlines()
        verdict, text = "FAILED", " ... ".join(dict.fromkeys((lines[0], lines[-1])))
    except Exception as bug:
        traceback.print_exc()
        verdict, text = "FAILED", f"the scene itself broke: {bug!r}"
    return verdict, f"{scene.name} ({time.monotonic() - began:.0f} s): {text}"


def chosen_scenes(short: bool, only: Sequence[str]) -> list[Scene]:
    if only:
        return [scene for scene in SCENES if any(word in scene.name for word in only)]
    return [scene for scene in SCENES if scene.short or not short]


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (sick.__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.sick", description=summary)
    parser.add_argument("--short", action="store_true", help="a minute's worth on a directory: for CI")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="scenes that contain it")
    parser.add_argument("--list", action="store_true", help="print the scenes and end")
    parser.add_argument(
        "--jobs", type=int, default=3, help="scenes at a time; most of them wait (default: 3)"
    )
    parser.add_argument("--keep", metavar="FOLDER", help="keep the brokers' logs there")
    chosen = parser.parse_args(arguments)
    scenes = chosen_scenes(chosen.short, chosen.only)
    if chosen.list:
        for scene in scenes:
            print(f"{scene.name}: {' '.join((scene.play.__doc__ or '').split())}")
        return 0
    if chosen.keep:
        os.environ["SICK_KEEP"] = chosen.keep
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    with interrupted_cleanly():
        for together in (True, False):
            jobs = chosen.jobs if together else 1
            with ThreadPoolExecutor(jobs) as pool:
                playing = [pool.submit(play, scene) for scene in scenes if scene.alone is not together]
                for done in as_completed(playing):
                    verdict, text = done.result()
                    counts[verdict] += 1
                    print(f"{verdict}: {text}", flush=True)
    print(f"{counts['ok']} scenes ok, {counts['FAILED']} failed, {counts['skipped']} skipped")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
