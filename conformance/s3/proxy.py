"""A proxy in front of an S3 server that loses answers, drops requests, turns them away and lets them hang.

It runs on a thread of its own. Requests pass through unchanged, so signatures hold.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Self

_BUSY = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
HANG_S = 8.0
"""Longer than the store waits for an answer to a small request."""


class Proxy:
    def __init__(self, port: int, shares: Mapping[str, float], seed: int) -> None:
        """`port`: the server's. `shares`: of all requests, how many are treated how: "lose" (served, and the
        answer thrown away), "drop" (not served), "busy" (503), "hang" (served, answered much later)."""
        self._port = port
        self._shares = shares
        self._chance = random.Random(seed)
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _end(self) -> None:
        """Give up what hangs."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 20)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
            while await self._pass(reader, writer, answers, upstream):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in (writer, upstream):
                if one is not None:
                    one.close()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        head, body = await message(reader)
        self.requests += 1
        fault = self._fault()
        if fault == "drop":
            return False
        if fault == "busy":
            writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n%s" % (len(_BUSY), _BUSY))
            return True
        upstream.write(head + body)
        answer, contents = await message(answers, empty=head.startswith(b"HEAD "))
        if fault == "lose":
            return False
        if fault == "hang":
            await asyncio.sleep(HANG_S)
        writer.write(answer + contents)
        await writer.drain()
        return True

    def _fault(self) -> str:
        left = self._chance.random()
        for name, share in self._shares.items():
            left -= share
            if left < 0:
                self.faults[name] += 1
                return name
        return ""


async def message(reader: asyncio.StreamReader, *, empty: bool = False) -> tuple[bytes, bytes]:
    """Head and body, as they came."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    if empty or b" 304 " in lines[0] or b" 204 " in lines[0]:
        return head, b""
    if b"transfer-encoding: chunked" in lines:
        body = b""
        while True:
            size = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
            body += size + chunk
            if len(chunk) == 2:
                return head, body
    sizes = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
    return head, await reader.readexactly(sizes[0] if sizes else 0)
