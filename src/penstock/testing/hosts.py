"""The place where a test's broker runs: on a thread of this process, or in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.node.node import Node

START_SECONDS = 30.0
STOP_SECONDS = 30.0
_READY = re.compile(r"penstock broker \d+ is serving on \S+?:(\d+)")


class BrokerError(Exception):
    """The broker did not start, or was used while it was not running."""


class Host(Protocol):
    def start(self) -> int:
        """Start the broker and return its port."""

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class ThreadHost:
    """An event loop on a thread: the quickest, and errors show up in the test's own process."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._node: Node | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> int:
        from penstock.node.node import Node, StartError
        from penstock.server.loop import new_event_loop
        from penstock.settings import Settings, SettingsError

        try:
            settings = Settings().with_values(self._settings)
        except SettingsError as error:
            raise BrokerError(str(error)) from error
        self._loop = loop = new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="penstock broker", daemon=True)
        self._thread.start()

        async def begin() -> Node:
            node = Node(settings)
            await node.start()
            return node

        try:
            self._node = self._call(begin(), START_SECONDS)
        except StartError as error:
            self._end_loop()
            raise BrokerError(str(error)) from error
        except BaseException:
            self._end_loop()
            raise
        self._running = asyncio.run_coroutine_threadsafe(self._node.run(), loop)
        return self._node.bound[0].port

    def stop(self) -> None:
        assert self._node is not None
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._node.stop)
        try:
            self._running.result(STOP_SECONDS)
        finally:
            self._end_loop()

    def kill(self) -> None:
        assert self._node is not None
        self._running.cancel()
        try:
            self._call(self._node.kill(), STOP_SECONDS)
        finally:
            self._end_loop()

    def _call(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()


class ProcessHost:
    """A process of its own, as `penstock start` runs it; it can be killed in the same way. It ends with this
    process, too (see `leashed`)."""

    def __init__(self, settings: Mapping[str, str], temporary: str | None) -> None:
        """`temporary`: the store, if it is to go with the broker where nobody is left to remove it."""
        self._settings = settings
        self._temporary = temporary or ""
        self._leash = -1
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        command = [sys.executable, "-m", "penstock.testing.leashed", self._temporary, "start"]
        command += ["--broker-id", self._settings["broker.id"]]
        for name, value in self._settings.items():
            if name != "broker.id":
                command += ["--set", f"{name}={value}"]
        # A number and no file: it is to stay open if the test forgets this object.
        held, self._leash = os.pipe()
        try:
            self._process = process = subprocess.Popen(
                command, stdin=held, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(held)
        line = self._first_line(process, time.monotonic() + START_SECONDS)
        ready = _READY.search(line)
        if ready is None:
            process.kill()
            _out, problem = process.communicate()
            self._let_go()
            raise BrokerError(problem.decode(errors="replace").strip() or "the broker ended without a word")
        threading.Thread(target=self._drain, args=(process,), name="penstock output", daemon=True).start()
        return int(ready[1])

    def _first_line(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        assert process.stdout is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    break
                piece = process.stdout.read1(4096)  # type: ignore[attr-defined]
                if not piece:
                    break
                line += piece
        return line.decode(errors="replace")

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        """Take what the broker logs, so that it never waits for a full pipe; show it with the test's own."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                sys.stderr.write(line.decode(errors="replace"))

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise BrokerError(f"the broker did not stop in {STOP_SECONDS:.0f} s") from error
        self._close_pipes()
        if code:
            raise BrokerError(f"the broker ended with exit code {code}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        assert self._process is not None
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._let_go()

    def _let_go(self) -> None:
        leash, self._leash = self._leash, -1
        if leash >= 0:
            os.close(leash)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid
