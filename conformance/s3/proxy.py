"""A proxy in front of an S3 server that obeys rules: for a method and a prefix of keys, what goes wrong.

    refuse   a status of the service itself (403, 401, 503): not served
    drop     the connection ends, not served
    lose     served, and the connection ends without the answer
    delay    served after a while; with a range of seconds, requests overtake each other
    hang     served, and answered after a while
    repeat   served, answered, and served once more later
    haunt    served and kept; when the object is deleted, it is written once more after that
    cut      the answer's body ends half-way
    flip     one bit of the answer's body is another
    hold     answered with 503 and kept, until a rule says `release`
    release  what is held is served first, then a while passes, then this request is served; nothing is held any more

It runs on a thread of its own. Requests pass unchanged, so signatures hold.
"""

import asyncio
import contextlib
import random
import re
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

KEPT_BYTES_MAX = 64 << 20
_DELETED = re.compile(rb"<Delete\b.*?<Key>([^<]+)</Key>", re.DOTALL)
_REASONS = {401: "InvalidAccessKeyId", 403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}


@dataclass(slots=True)
class Rule:
    does: str
    method: str = ""
    """GET, PUT, DELETE or LIST; empty: any."""
    prefix: str = ""
    """Of keys in the store: `manifests/`, for example."""
    share: float = 1.0
    """Of the requests that fit, how many."""
    seconds: tuple[float, float] = (0.0, 0.0)
    status: int = 403
    times: int = -1
    """How often at most; -1: without limit."""
    hits: int = 0

    def fits(self, method: str, key: str, chance: random.Random) -> bool:
        if self.times == 0 or (self.method and method != self.method) or not key.startswith(self.prefix):
            return False
        if self.share < 1.0 and chance.random() >= self.share:
            return False
        self.times -= 1
        self.hits += 1
        return True


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    key: str
    head: bytes
    body: bytes


class Proxy:
    def __init__(self, port: int, root: str, seed: int) -> None:
        """`port`: the server's. `root`: bucket and prefix of the store, as in `bucket/prefix`."""
        self._server_port = port
        self._bucket, _, prefix = root.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._chance = random.Random(seed)
        self._rules: tuple[Rule, ...] = ()
        self._kept: dict[str, Request] = {}
        self._kept_bytes = 0
        self._held: list[Request] = []
        self._later: set[asyncio.Task[None]] = set()
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self.port = 0
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
        self._loop.close()

    async def _end(self) -> None:
        """Nothing is left that would complain when the loop is gone."""
        self._server.close()
        # Connections that were just being accepted become tasks only now.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)  # Connections that were closed are told so.

    @contextlib.contextmanager
    def sick(self, *rules: Rule) -> Iterator[None]:
        """These rules hold meanwhile, before those that hold already."""
        before = self._rules
        self._rules = (*rules, *before)
        try:
            yield
        finally:
            self._rules = before

    @property
    def held(self) -> int:
        return len(self._held)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 20)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._server_port, limit=1 << 20)
            while await self._pass(reader, writer, answers, upstream):
                pass
        except (asyncio.IncompleteReadError, ValueError, OSError):
            pass
        except asyncio.CancelledError:
            pass  # The proxy ends; whoever made this task would complain.
        finally:
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
        request = self._parsed(*await message(reader))
        self.requests += 1
        rule = self._rule(request)
        if rule is not None and not await self._before(rule, request, writer):
            return rule.does != "drop"
        upstream.write(request.head + request.body)
        answer, contents = await message(answers, empty=request.method == "HEAD")
        if request.method == "DELETE" and request.key in self._kept:
            self.faults["came back"] += 1
            self._soon(self._again(self._kept.pop(request.key), 0.5))
        if rule is not None:
            if rule.does == "lose":
                return False
            if rule.does == "hang":
                await asyncio.sleep(self._chance.uniform(*rule.seconds))
            if rule.does == "repeat":
                self._soon(self._again(request, self._chance.uniform(*rule.seconds)))
            if rule.does == "cut" and len(contents) > 1:
                writer.write(answer + contents[: len(contents) // 2])
                await writer.drain()
                return False
            if rule.does == "flip" and contents:
                contents = self._flipped(contents)
        writer.write(answer + contents)
        await writer.drain()
        return True

    async def _before(self, rule: Rule, request: Request, writer: asyncio.StreamWriter) -> bool:
        """What a rule does before a request is served; False if it is not served at all."""
        match rule.does:
            case "refuse" | "hold":
                status = 503 if rule.does == "hold" else rule.status
                if rule.does == "hold":
                    self._held.append(request)
                name = _REASONS[status]
                text = f"<Error><Code>{name}</Code><Message>on purpose</Message></Error>".encode()
                if request.method == "HEAD":
                    text = b""
                head = f"HTTP/1.1 {status} {name}\r\nContent-Length: {len(text)}\r\n\r\n"
                writer.write(head.encode() + text)
                await writer.drain()
                return False
            case "drop":
                return False
            case "delay":
                await asyncio.sleep(self._chance.uniform(*rule.seconds))
            case "haunt":
                self._keep(request)
            case "release":
                await self._release()
                await asyncio.sleep(self._chance.uniform(*rule.seconds))
        return True

    def _parsed(self, head: bytes, body: bytes) -> Request:
        method, target, _version = head.split(b"\r\n", 1)[0].decode().split(" ")
        parts = urlsplit(target)
        path = unquote(parts.path).lstrip("/")
        key = path.removeprefix(f"{self._bucket}/").removeprefix(self._bucket)
        if method == "GET" and "list-type" in parts.query:
            method, key = "LIST", parse_qs(parts.query).get("prefix", [""])[0]
        elif method == "POST" and (named := _DELETED.search(body)) is not None:
            method, key = "DELETE", named[1].decode()  # Clients delete one object as they delete many.
        return Request(method, key.removeprefix(self._prefix), head, body)

    def _rule(self, request: Request) -> Rule | None:
        for rule in self._rules:
            if rule.fits(request.method, request.key, self._chance):
                self.faults[rule.does] += 1
                return rule
        return None

    def _keep(self, request: Request) -> None:
        if self._kept_bytes + len(request.body) <= KEPT_BYTES_MAX:
            self._kept_bytes += len(request.body)
            self._kept[request.key] = request

    def _flipped(self, contents: bytes) -> bytes:
        changed = bytearray(contents)
        at = self._chance.randrange(len(changed))
        changed[at] ^= 1 << self._chance.randrange(8)
        return bytes(changed)

    async def _release(self) -> None:
        for rule in self._rules:
            if rule.does == "hold":
                rule.times = 0
        held, self._held = self._held, []
        for request in held[:1]:  # The others are the same request, tried again.
            await self._again(request, 0.0)

    async def _again(self, request: Request, seconds: float) -> None:
        """Serve a request for which nobody waits any more."""
        await asyncio.sleep(seconds)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
            answers, upstream = await asyncio.open_connection("127.0.0.1", self._server_port, limit=1 << 20)
            try:
                upstream.write(request.head + request.body)
                await message(answers)
            finally:
                upstream.close()

    def _soon(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)


class Bursts(threading.Thread):
    """Adds a rule for a second or three, rests, takes the next: like a service that has a bad hour."""

    def __init__(self, proxy: Proxy, rules: list[Rule], seed: int, rest_s: tuple[float, float]) -> None:
        super().__init__(name="bursts", daemon=True)
        self._proxy = proxy
        self._rules_to_add = rules
        self._chance = random.Random(seed)
        self._rest_s = rest_s
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(self._chance.uniform(*self._rest_s)):
            with self._proxy.sick(self._chance.choice(self._rules_to_add)):
                self._ending.wait(self._chance.uniform(1.0, 3.0))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self.join(10)


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
