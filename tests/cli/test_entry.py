"""How the command ends once the SDK of object stores is loaded: its threads may outlive the last request."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os, sys, threading, time

class Watch:
    def __del__(self, write=os.write):
        write(1, b"taken apart\\n")

{loaded}
watch = Watch()
threading.Thread(target=lambda: (time.sleep(0.2), print("thread ended"))).start()
atexit.register(print, "at exit")
sys.argv = ["penstock", {argument!r}]
from penstock.cli.entry import main
print("not a line", end=" ")
sys.exit(main())
"""


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
