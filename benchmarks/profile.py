"""Where the broker's time goes while a scenario runs: py-spy samples the process from outside.

Each scenario writes two files to `out/profile`. Flame graph tools (speedscope among them) read `.collapsed`.
`.txt` lists the functions by their own samples and by samples in which they were on the stack.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks import build

FOLDER = build.OUT / "profile"
RATE = 250
ROWS = 25
# An idle thread of a pool: py-spy takes it for busy when the machine is.
WAITING = ("_worker (concurrent/futures/thread.py", "wait (threading.py")


def program() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def record(pid: int, key: str, load: Callable[[], object]) -> str | None:
    """Sample the process while the load runs; the path of the table, None when nothing could be sampled."""
    spy = program()
    if spy is None:
        return None
    FOLDER.mkdir(parents=True, exist_ok=True)
    stem = FOLDER / key.replace("/", "-").replace(" ", "-")
    stacks = stem.with_name(stem.name + ".collapsed")
    stacks.unlink(missing_ok=True)
    # Without native frames a sample stops the broker for microseconds and waiting is left out; time in the
    # kernel or in a wheel counts as its caller's own.
    options = ["--pid", str(pid), "--rate", str(RATE), "--format", "raw", "--output", str(stacks)]
    sampler = subprocess.Popen(
        [spy, "record", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        load()
    finally:
        sampler.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            sampler.wait(30)
        if sampler.poll() is None:
            sampler.kill()
            sampler.wait()
    if not stacks.exists():
        return None
    table = stem.with_name(stem.name + ".txt")
    table.write_text(f"{key}: {RATE} samples a second, idle time left out\n\n{tabulate(stacks.read_text())}")
    return str(table)


def tabulate(collapsed: str) -> str:
    """The heaviest functions of collapsed stacks, lines of one function added up."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    total = 0
    for line in collapsed.splitlines():
        stack, _, count = line.rpartition(" ")
        samples = int(count)
        if stack.rpartition(";")[2].startswith(WAITING):
            continue
        frames = [frame.rsplit(":", 1)[0].rstrip(")") + ")" for frame in stack.split(";")]
        total += samples
        own[frames[-1]] += samples
        for frame in set(frames):
            whole[frame] += samples
    lines = [f"{total} samples", "", "   own   whole  function (by own samples)"]
    for chosen in (own, whole):
        if chosen is whole:
            lines += ["", "   own   whole  function (by samples on the stack)"]
        for frame, _ in chosen.most_common(ROWS):
            lines.append(f"{own[frame] / total:6.1%}  {whole[frame] / total:6.1%}  {frame}")
    return "\n".join(lines) + "\n"
