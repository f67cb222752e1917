"""A broker's process that ends when the process of the tests does, however that one ended.

    python -m penstock.testing.leashed TEMPORARY start ...

Runs `penstock start ...`. Its standard input is a pipe whose other end only the tests' process holds. It ends
when that process is gone, killed or done without a `close`: then the broker stops, and what lies in TEMPORARY
is removed, if that is not empty.
"""

import atexit
import os
import shutil
import signal
import sys
import threading
import time

STOP_SECONDS = 30.0


def main() -> int:
    from penstock.cli.entry import main as penstock

    temporary = sys.argv.pop(1)
    threading.Thread(target=_end_with_it, args=(temporary,), name="penstock leash", daemon=True).start()
    return penstock()


def _end_with_it(temporary: str) -> None:
    while os.read(0, 1):
        pass
    if temporary:
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
