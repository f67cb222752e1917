"""The pytest plugin: fixtures, and modules that pytest leaves as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from penstock.testing import Broker
from tests.testing.test_broker import send

LOADERS = """
import importlib, threading

def loaded(name):
    kinds = []
    thread = threading.Thread(target=lambda: kinds.append(importlib.import_module(name)))
    thread.start()
    thread.join()
    importlib.import_module(name)
    return type(kinds[0].__loader__).__name__

def test_who_loads_what():
    import helped
    import penstock.wire.batch as batch
    importlib.import_module("helping")
    print(
        "who",
        type(batch.__loader__).__name__,
        type(helped.__loader__).__name__,
        loaded("penstock.wire.legacy"),
        loaded("helped.again"),
        sep="=",
    )
"""


def project(directory: Path) -> None:
    """A library that brings a plugin and is marked for rewriting, of two modules; and a test."""
    (directory / "test_loaders.py").write_text(LOADERS)
    (directory / "helped").mkdir()
    for name in ("helped/__init__.py", "helped/again.py", "helping.py"):
        (directory / name).write_text("")
    described = directory / "helping-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: helping\nVersion: 1\n")
    (described / "entry_points.txt").write_text("[pytest11]\nhelping = helping\n")
    # As a wheel that is installed says it: whatever stands here is rewritten.
    (described / "RECORD").write_text("helped/__init__.py,,\nhelping.py,,\npenstock/__init__.py,,\n")


def loaders(directory: Path, *options: str) -> list[str]:
    """Who loaded modules: one of Penstock, one of the library, and in a thread one of each."""
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-s", "-q", *options, "test_loaders.py"]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "who=" in line)
    return line.partition("who=")[2].split("=")


def test_pytest_leaves_the_modules_of_a_broker_as_they_are(tmp_path: Path) -> None:
    """Those of Penstock, and what a broker's thread imports, whoever it belongs to."""
    project(tmp_path)
    plain, rewriting = "SourceFileLoader", "AssertionRewritingHook"
    assert loaders(tmp_path) == [plain, rewriting, plain, plain]
    # pytest would rewrite them all.
    assert loaders(tmp_path, "-p", "no:penstock") == [rewriting] * 4
    assert loaders(tmp_path, "--assert=plain") == [plain] * 4


def test_the_fixtures(penstock_broker: Broker, penstock_session_broker: Broker) -> None:
    assert penstock_broker.bootstrap_servers != penstock_session_broker.bootstrap_servers
    send(penstock_broker.bootstrap_servers, "t", b"x")


def test_the_plugin_loads_nothing_until_it_is_used() -> None:
    code = "import sys, penstock.testing.plugin; print(*sorted(m for m in sys.modules if 'penstock' in m))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["penstock", "penstock.testing", "penstock.testing.plugin"]
