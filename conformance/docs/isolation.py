"""A page is run in namespaces of its own: its ports are free, and nothing that it started outlives it.

Where no namespace can be had, pages run one at a time on the machine itself, and a page whose ports are taken is not
run: that is said, with the reason.
"""

import fcntl
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from conformance.docs.pages import ROOT, Page
from conformance.docs.running import Step

_PORTS = re.compile(r"(?<![\d.])(?:127\.0\.0\.1|localhost):(\d{4,5})\b")
_DEFAULT_PORT = 9092
_LIMIT_S = 1800.0


class Unable(Exception):
    """The page cannot be run on this machine now; the message says why."""


@cache
def namespaces() -> tuple[str, ...]:
    """The command that gives a program its own network and processes; empty if there is none here."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return ()
    own = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    for command in (own, (*own, "--user", "--map-root-user")):
        tried = subprocess.run(
            [*command, "ip", "link", "set", "lo", "up"], capture_output=True, check=False, timeout=30
        )
        if tried.returncode == 0:
            return command
    return ()


def run(page: Page) -> list[Step]:
    inside = [sys.executable, "-m", "conformance.docs.inside", str(page.path)]
    if around := namespaces():
        return _run([*around, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *inside])
    with open(Path(tempfile.gettempdir()) / "penstock-docs.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for port in sorted(ports(page)):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError as taken:
                    raise Unable(
                        f"port {port} is taken on this machine, and no network namespace can be had here: {taken}"
                    ) from taken
        return _run(inside)


def ports(page: Page) -> set[int]:
    return {_DEFAULT_PORT, *map(int, _PORTS.findall(page.path.read_text(encoding="utf-8")))}


def _run(command: Sequence[str]) -> list[Step]:
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    if done.returncode:
        raise RuntimeError(f"the runner ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return [Step(**step) for step in json.loads(done.stdout)]
