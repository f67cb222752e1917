"""How the command ends: by Ctrl-C, and beside threads of the SDK of object stores."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import Broker
from penstock.testing.ports import consecutive
from penstock.testing.waiting import until

PROGRAM = """
import atexit, os, sys, threading, time

class Watch:
    def __del__(self, write=os.write):
        write(1, b"taken apart\\n")

{loaded}
watch = Watch()
begun = threading.Event()
threading.Thread(target=lambda: (begun.wait(), time.sleep(0.2), print("thread ended"))).start()
atexit.register(print, "at exit")
sys.argv = ["penstock", {argument!r}]
from penstock.cli.entry import main
print("not a line", end=" ")
begun.set()
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Commands hear Ctrl-C. What a script starts in the background ignores it, and so would all that tests
    start which run there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("--no-such-option", 2)])
@pytest.mark.parametrize("loaded", ["import obstore", ""])
def test_a_process_with_threads_of_the_sdk_is_not_taken_apart(argument: str, code: int, loaded: str) -> None:
    program = PROGRAM.format(loaded=loaded, argument=argument)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    said = done.stdout.removeprefix("not a line ")
    assert said != done.stdout, "what was printed came out"
    lines = said.splitlines()
    assert lines.index("thread ended") < lines.index("at exit")
    assert ("taken apart" in lines) is not bool(loaded)
    assert ("no-such-option" in done.stderr) is (code == 2)


EARLY = """
import signal, sys

def find_spec(name, *rest):
    if name == "penstock.cli.app":
        signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, type("Finder", (), {"find_spec": staticmethod(find_spec)}))
sys.argv = ["penstock", "topics", "list"]
from penstock.cli.entry import main
sys.exit(main())
"""


def test_an_interrupt_while_the_command_is_loaded_ends_it_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_ends_a_command_that_follows_without_a_word() -> None:
    with Broker() as broker:
        command = [sys.executable, "-m", "penstock", "consume", "followed", "--follow"]
        server = ["--bootstrap", broker.bootstrap_servers]
        produce = [sys.executable, "-m", "penstock", "produce", "followed", "here", *server]
        subprocess.run(produce, check=True, capture_output=True)
        with subprocess.Popen(
            [*command, *server], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "here\n"
            running.send_signal(signal.SIGINT)
            rest, said = running.communicate(timeout=60)
    assert (running.returncode, rest, said) == (130, "", "")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("line", ["--help", "settings retention --json", "settings --json"])
def test_output_that_cannot_be_written_is_one_sentence(line: str) -> None:
    command = [sys.executable, "-m", "penstock", *line.split()]
    with open(FULL, "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == "Error: The output cannot be written: No space left on device.\n"
    assert done.returncode == 1


def test_output_that_nobody_reads_is_no_mistake() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as ended:
        command = [sys.executable, "-m", "penstock", "settings", "retention", "--json"]
        done = subprocess.run(command, stdout=ended, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bytes_that_are_no_text_and_letters_that_output_lacks() -> None:
    variables = {**os.environ, "PYTHONIOENCODING": "ascii"}

    def run(*words: str | bytes) -> bytes:
        command = [sys.executable, "-m", "penstock", *words]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, env=variables).stdout

    with Broker() as broker:
        variables["PENSTOCK_BOOTSTRAP"] = broker.bootstrap_servers
        run("produce", "typed", b"v\xff", "--key", b"k\xfe", "--header", b"h=\xfd")
        assert run("consume", "typed", "--key", b"k\xfe", "--format", "%k %s %h\n") == b"k\xfe v\xff h=\xfd\n"
        run("consume", "typed", "--group", "b\u00fcro \u20ac \U0001f389")
        listed = run("groups", "list", "--json")
        assert rb"b\u00fcro \u20ac \ud83c\udf89" in listed
        assert [row["group"] for row in json.loads(listed)] == ["b\u00fcro \u20ac \U0001f389"]


def test_commands_and_brokers_without_standard_streams(tmp_path: Path) -> None:
    def run(*arguments: str, closed: str) -> int:
        line = shlex.join([sys.executable, "-m", "penstock", *arguments])
        return subprocess.run(["sh", "-c", f"exec {line} {closed}"], check=False, timeout=60).returncode

    with Broker() as broker:
        to = ("--bootstrap", broker.bootstrap_servers)
        assert run("topics", "create", "quiet", *to, closed=">&-") == 0
        assert run("produce", "quiet", "v", *to, closed="<&- >&- 2>&-") == 0
        assert run("produce", "quiet", *to, closed="<&-") == 2
        for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
            assert run("consume", "quiet", *to, closed=closed) == 0, closed
            assert run("topics", "describe", "nobody", *to, closed=closed) == 1, closed
    with consecutive(1) as port:
        line = shlex.join([sys.executable, "-m", "penstock", "start", f"--listen=127.0.0.1:{port}"])
        where = f"--store={tmp_path / 'store'}"
        with subprocess.Popen(["sh", "-c", f"exec {line} {where} <&- >&- 2>&-"]) as running:
            try:
                to = ("--bootstrap", f"127.0.0.1:{port}")
                until(lambda: run("topics", "list", *to, closed=">&-") == 0, 60, "the broker")
                if sys.platform == "linux":
                    files = Path(f"/proc/{running.pid}/fd")
                    assert {os.readlink(files / str(number)) for number in range(3)} == {os.devnull}
            finally:
                running.terminate()
            assert running.wait(60) == 0
