"""What the proofs of packages share: a check that is printed when it held, and commands that must end well."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SERVING = re.compile(r"^penstock broker (\d+) is serving on (\S+?:\d+) \(")
COMMAND_LIMIT_S = 600.0
START_LIMIT_S = 30.0
STOP_LIMIT_S = 60.0
RECORDS = 100


class Broken(Exception):
    """What was promised did not hold. The message says what."""


def held(condition: bool, sentence: str) -> None:
    """Print what held; Broken if it did not."""
    if not condition:
        raise Broken(f"not so: {sentence}")
    print(f"  {sentence}", flush=True)


def clean_environment(home: Path) -> dict[str, str]:
    """What a new user has: no variables of this shell, a home of its own."""
    return {"PATH": os.defpath, "HOME": str(home), "LANG": "C.UTF-8"}


def run(
    command: Sequence[str | Path], where: Path, environment: Mapping[str, str] | None = None, text: str = ""
) -> str:
    """What a command printed; Broken if it did not end with 0."""
    done = subprocess.run(
        command,
        cwd=where,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise Broken(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{last}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Started:
    process: "subprocess.Popen[str]"
    address: str
    seconds: float
    """From exec to the line that says that it serves."""


@contextmanager
def started(
    command: Sequence[str | Path], where: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Started]:
    """A broker that printed that it serves. It is told to stop at the end, and must end with 0."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        said: list[str] = []
        while not (found := SERVING.match(said[-1] if said else "")):
            line = process.stdout.readline()
            if not line or time.perf_counter() - began > START_LIMIT_S:
                raise Broken(f"{' '.join(map(str, command))} did not serve: {''.join(said)[-2000:]}")
            said.append(line)
        yield Started(process, found[2], time.perf_counter() - began)
        process.terminate()
        code = process.wait(STOP_LIMIT_S)
        if code:
            raise Broken(f"told to stop, the broker ended with {code}: {process.stdout.read()[-2000:]}")
    finally:
        process.kill()
        process.wait()


def write_and_read(command: Callable[..., list[str | Path]], where: Path, bootstrap: str, topic: str) -> None:
    """Records of one `penstock produce` come out of `penstock consume`. `command` completes a command line."""
    wanted = [f"record {number}" for number in range(RECORDS)]
    cluster = ("--bootstrap", bootstrap)
    run(command("topics", "create", topic, *cluster), where)
    run(command("produce", topic, *cluster), where, text="".join(f"{line}\n" for line in wanted))
    said = run(command("consume", topic, *cluster, "--format", "%s\\n"), where)
    held(said.splitlines() == wanted, f"a client wrote {RECORDS} records and read them back")
