"""A visitor of the console: cookies are kept, forms bring their token along, as a browser does."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Future
from html import unescape
from threading import Thread

import httpx
from httpx import Response

from penstock.console.application import Console
from penstock.console.options import ConsoleOptions
from penstock.web.server import HttpServer

_TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')
_TAGS = re.compile(r"<[^>]*>")


class Browser:
    def __init__(self, options: ConsoleOptions) -> None:
        self._served = Served(options)
        self.console = self._served.console
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self._served.port}", timeout=30)

    def get(self, path: str, status: int = 200, **headers: str) -> str:
        """The page at `path`."""
        answer = self.answer(path, **headers)
        assert answer.status_code == status, answer.text
        return answer.text

    def answer(self, path: str, **headers: str) -> Response:
        return self.http.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def send(
        self, path: str, fields: dict[str, str], *, on: str = "/topics", origin: str | None = None
    ) -> Response:
        """Send a form that stands on the page `on`."""
        found = _TOKEN.search(self.http.get(on).text)
        token = found[1] if found else ""
        headers = {} if origin is None else {"origin": origin}
        return self.http.post(path, data={"token": token, **fields}, headers=headers)

    def sent(self, path: str, fields: dict[str, str], *, on: str = "/topics") -> str:
        """Send a form that works; the page that follows."""
        answer = self.send(path, fields, on=on)
        assert answer.status_code == 303, text_of(answer.text)
        return self.get(answer.headers["location"])

    def close(self) -> None:
        self.http.close()
        self._served.close()


class Served:
    """A console at a port, on a loop of its own."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.console = Console(options)
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        started: Future[int] = Future()
        self._thread = Thread(target=self._loop.run_until_complete, args=[self._serve(started)], daemon=True)
        self._thread.start()
        self.port = started.result(30)

    async def _serve(self, started: Future[int]) -> None:
        server = HttpServer(self.console.application(), 100)  # type: ignore[arg-type]
        port = server.bind("127.0.0.1", 0)
        await server.start()
        started.set_result(port)
        await self._end.wait()
        await server.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        self._loop.close()
        self.console.close()


def text_of(page: str) -> str:
    """What a person reads, in one line."""
    body = page[page.find("<main") :]
    return " ".join(unescape(_TAGS.sub(" ", body)).replace("\u202f", "").split())
