"""What runs where Python lacks the modules and calls of Linux, as on Windows: the side of the clients.

Modules and functions that Windows does not have are taken away in a process of its own. What is left of
Penstock there: the package and everything that talks to brokers. A broker does not start there, and says so
in one sentence. What reads a store is in tests/storage/test_without_linux.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request

from penstock.testing import Broker

WINDOWS = """
import os, sys

LACKING = {"fcntl", "grp", "pwd", "resource", "termios", "uvloop"}

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Lacking())
for name in LACKING:
    sys.modules.pop(name, None)
for name in (
    "O_CLOEXEC", "O_DIRECTORY", "RWF_NOWAIT", "fchmod", "fdatasync", "fork", "geteuid", "getuid", "posix_fadvise",
    "posix_fallocate", "pread", "preadv", "pwritev", "sched_getaffinity", "statvfs", "sysconf",
):
    delattr(os, name)
"""  # noqa: E501 (one table)

IMPORTED = (
    "penstock", "penstock.client", "penstock.testing", "penstock.testing.plugin", "penstock.cli.app",
    "penstock.spark", "penstock.spark.source", "penstock.pipeline",
    "penstock.settings", "penstock.wire",
)  # fmt: skip


def on_windows(program: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WINDOWS + program, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def penstock(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return on_windows("from penstock.cli.entry import main\nsys.exit(main())", *arguments, text=text)


def test_the_side_of_the_clients_is_imported() -> None:
    done = on_windows(f"import {', '.join(IMPORTED)}")
    assert done.returncode == 0, done.stderr


def test_commands_that_talk_to_brokers_run() -> None:
    with Broker() as broker:
        cluster = ("--bootstrap", broker.bootstrap_servers)
        assert penstock("topics", "create", "orders", *cluster).returncode == 0
        done = penstock("produce", "orders", *cluster, text="one\ntwo\n")
        assert done.returncode == 0, done.stderr
        done = penstock("consume", "orders", *cluster, "--group", "readers", "--format", "%s ")
        assert (done.returncode, done.stdout) == (0, "one two "), done.stderr
        for command in (("topics", "describe", "orders"), ("groups", "describe", "readers"), ("doctor",)):
            done = penstock(*command, *cluster)
            assert done.returncode == 0, done.stderr


CONSOLE = """
import asyncio

def add_signal_handler(self, number, callback):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = add_signal_handler
from penstock.cli.entry import main
sys.exit(main())
"""


def test_the_console_serves_and_ends() -> None:
    with Broker() as broker:
        arguments = ("console", "--bootstrap", broker.bootstrap_servers, "--listen", "127.0.0.1:0")
        command = [sys.executable, "-c", WINDOWS + CONSOLE, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console:
            assert console.stdout is not None
            line = console.stdout.readline()
            try:
                assert line.startswith("penstock console is at http://127.0.0.1:")
                for page in ("/", "/topics", "/groups", "/store"):
                    with urllib.request.urlopen(line.split()[-1] + page, timeout=30) as answer:
                        assert answer.status == 200
            finally:
                console.send_signal(signal.SIGINT)
            assert console.wait(30) == 0


def test_a_broker_does_not_start_and_says_so() -> None:
    done = penstock("start", "--store", "memory://", "--listen", "127.0.0.1:0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("penstock: Brokers run on Linux and macOS only.")
    assert len(done.stderr.splitlines()) == 1
