"""The console as an ASGI application: which page answers, who is let in, and what becomes of errors.

A request goes through here in this order: its Host, the visitor's cookie and login, for a form its origin and
its token, then the page. So no page can forget one of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from urllib.parse import parse_qsl, quote

import anyio
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.client import AnswerError, ClientError, ClientRefusedError
from penstock.console.cluster import Cluster
from penstock.console.decoding import Decoding
from penstock.console.guard import HEADERS, host_fits, origin_fits
from penstock.console.options import ConsoleOptions
from penstock.console.pages import MENU, MODULES
from penstock.console.rendering import environment
from penstock.console.sessions import Sessions, Tokens
from penstock.console.visit import (
    SAID_SECONDS,
    UNWRITABLE,
    Event,
    Handler,
    Visit,
    cookie_text,
    text_of_cookie,
)
from penstock.wire.errors import ErrorCode

log = logging.getLogger(__name__)

FORM_BYTES_MAX = 8 * 1024 * 1024
"""A record that is sent by hand; brokers take a mebibyte unless they are told otherwise."""
FORM_SECONDS = 60.0
LOGIN_BYTES_MAX = 16 * 1024
LOGIN_SECONDS = 10.0
FIELDS_MAX = 1000
STREAMS_MAX = 32
"""Pages that follow something at once; each has a thread."""
THREADS_MAX = 32
RENEWS = "x-renews"
"""A page that renews itself says so: nobody may be there."""
_ROOM = Path(__file__).parent


class Console:
    """What all pages share."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.options = options
        self.menu = MENU
        self.templates = environment(_ROOM / "templates")
        self.sessions = Sessions(time.monotonic)
        self.tokens = Tokens()
        self.decoding = Decoding(options.registry)
        self.everybody = None if options.mechanisms else Cluster(options.bootstrap, options.security)
        """The cluster where nobody logs in."""
        self._threads = anyio.CapacityLimiter(THREADS_MAX)
        self._streams = anyio.CapacityLimiter(STREAMS_MAX)

    def application(self) -> ASGIApp:
        routes: list[Route | Mount] = [
            Route(handler.path, self._endpoint(handler), methods=[handler.method]) for handler in handlers()
        ]
        routes.append(Mount("/static", StaticFiles(directory=_ROOM / "static")))
        inner = Starlette(
            routes=routes,
            exception_handlers={
                ClientError: self._client_error,
                HTTPException: self._http_error,
                Exception: self._bug,
            },
        )
        return Guarded(inner, self.options)

    def close(self) -> None:
        self.sessions.close()
        if self.everybody is not None:
            self.everybody.close()

    # -- who is let in --------------------------------------------------------------------------------

    def visit(self, request: Request) -> Visit | None:
        """The visit of somebody who is let in; None: not without a login."""
        name = request.cookies.get(self.cookie(request, "visit"), "")
        if self.everybody is not None:
            return Visit(self, request, self.everybody, name, None)
        session = self.sessions.find(name, visits=RENEWS not in request.headers)
        return None if session is None else Visit(self, request, session.cluster, name, session.user)

    def stranger(self, request: Request) -> Visit:
        """The visit of somebody who did not log in, to a page that needs no login."""
        name = request.cookies.get(self.cookie(request, "visit"), "")
        nobody = self.everybody or Cluster(self.options.bootstrap, self.options.security)
        return Visit(self, request, nobody, name, None)

    def cookie(self, request: Request, what: str) -> str:
        """Cookies know no ports, and several consoles may be on one machine."""
        server = request.scope.get("server")
        return f"penstock_{what}_{server[1] if server else 0}"

    def remember(self, answer: Response, request: Request, name: str) -> None:
        """Give the visitor a name to come back with."""
        answer.set_cookie(
            self.cookie(request, "visit"),
            name,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    def say(self, answer: Response, request: Request, sentence: str) -> None:
        """Let the next page begin with a sentence. It is signed: no other site can put words in our mouth."""
        answer.set_cookie(
            self.cookie(request, "said"),
            f"{self.tokens.of(sentence)}.{cookie_text(sentence)}",
            max_age=SAID_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )

    def heard(self, request: Request) -> str:
        token, _, text = request.cookies.get(self.cookie(request, "said"), "").partition(".")
        sentence = text_of_cookie(text)
        return sentence if sentence and self.tokens.fits(token, sentence) else ""

    # -- from a request to a page ---------------------------------------------------------------------

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if not request.cookies and _comes_from_elsewhere(request):
                # Strict cookies are not sent along a link from another site, and are with a reload.
                return HTMLResponse('<!doctype html><meta http-equiv="refresh" content="0">')
            visit = self.visit(request)
            if visit is None and handler.open:
                visit = self.stranger(request)
            if visit is None:
                return self._to_login(request)
            fresh = ""
            if not visit.name:
                fresh = visit.name = self.sessions.new_name()
            if handler.method == "POST":
                visit.form = await (_form(request) if visit.user or self.everybody else _login_form(request))
                self._check_form(visit)
            if handler.follow is not None:
                return await self._follow(handler.follow(visit))
            assert handler.run is not None
            answer = await run_sync(handler.run, visit, limiter=self._threads)
            if fresh and "set-cookie" not in answer.headers:
                self.remember(answer, request, fresh)
            return answer

        return endpoint

    def _to_login(self, request: Request) -> Response:
        if request.method != "GET" or RENEWS in request.headers:
            raise HTTPException(401, "You are not logged in, or not any more.")
        back = request.scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?back={quote(back, safe='')}", 303)

    def _check_form(self, visit: Visit) -> None:
        request = visit.request
        if not origin_fits(request.headers.get("origin"), request.headers.get("host", "")):
            raise HTTPException(403, "The form was not sent from a page of this console.")
        if not self.tokens.fits(visit.form.pop("token", ""), visit.name):
            raise HTTPException(
                403,
                "The form is too old, or not from this console: load its page again and send it once more.",
            )

    async def _follow(self, events: Iterator[Event | None]) -> Response:
        if self._streams.available_tokens < 1:
            raise HTTPException(503, "Too many pages follow something at once: close some of them.")

        async def body() -> AsyncIterator[bytes]:
            try:
                while True:
                    event = await run_sync(next, events, _END, limiter=self._streams)
                    if event is _END:
                        yield b"event: end\ndata:\n\n"
                        return
                    yield _sse(event) if isinstance(event, Event) else b":\n\n"
            except ClientError as error:
                yield _sse(Event("failed", str(error)))
            finally:
                with anyio.CancelScope(shield=True):
                    await run_sync(events.close, limiter=self._threads)  # type: ignore[attr-defined]

        return StreamingResponse(
            body(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    # -- what went wrong ------------------------------------------------------------------------------

    def _problem(self, request: Request, status: int, sentence: str) -> Response:
        visit = self.visit(request) or self.stranger(request)
        title = "No answer" if status == HTTPStatus.BAD_GATEWAY else HTTPStatus(status).phrase
        return visit.render("problem.html", status, title=title, sentence=sentence)

    async def _client_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ClientError)
        return await run_sync(self._problem, request, _status(error), str(error))

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentence = error.detail
        if error.status_code == 404 and sentence == HTTPStatus.NOT_FOUND.phrase:
            sentence = "There is no such page."
        return await run_sync(self._problem, request, error.status_code, sentence)

    async def _bug(self, request: Request, error: Exception) -> Response:
        log.error("a page failed path=%s", request.scope["path"], exc_info=error)
        return PlainTextResponse("This page failed. The log of the console says why.\n", 500)


class Guarded:
    """Turns strangers' Host headers away, and gives every answer the headers that browsers need.

    Pages are found by the path as it was asked for, still quoted: a name in it may have any character, such
    as a slash, a question mark or the end of a line.
    """

    def __init__(self, inner: ASGIApp, options: ConsoleOptions) -> None:
        self._inner = inner
        self._names = options.names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        host = next((value for key, value in scope["headers"] if key == b"host"), b"").decode("latin-1")
        if not host_fits(host, self._names):
            refusal = PlainTextResponse(
                f"This console does not answer to the name {host[:200]!r}. Use its address, or give it the "
                "name: http.names of a broker, --name of penstock console.\n",
                421,
            )
            await refusal(scope, receive, send_on)
            return
        await self._inner({**scope, "path": scope["raw_path"].decode("ascii")}, receive, send_on)


def handlers() -> Iterator[Handler]:
    """What the modules of pages declare."""
    for name in MODULES:
        module = import_module(f"penstock.console.pages.{name}")
        yield from (one for one in vars(module).values() if isinstance(one, Handler))


_END = object()


def _sse(event: Event) -> bytes:
    lines = "".join(f"data: {line}\n" for line in event.data.split("\n"))
    return f"event: {event.name}\n{lines}\n".encode(errors=UNWRITABLE)


async def _login_form(request: Request) -> dict[str, str]:
    """What somebody sends who is not let in yet: little, and soon, for others want to log in, too."""
    return await _form(request, LOGIN_BYTES_MAX, LOGIN_SECONDS)


async def _form(
    request: Request, size_max: int = FORM_BYTES_MAX, seconds: float = FORM_SECONDS
) -> dict[str, str]:
    body = bytearray()
    try:
        with anyio.fail_after(seconds):
            async for part in request.stream():
                body += part
                if len(body) > size_max:
                    raise HTTPException(413, f"A form has at most {size_max // 1024} KiB.")
    except TimeoutError:
        raise HTTPException(408, f"The form did not come within {seconds:.0f} s.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The form did not come whole.") from None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
    return dict(fields)


def _comes_from_elsewhere(request: Request) -> bool:
    headers = request.headers
    return (
        request.method == "GET"
        and headers.get("sec-fetch-site") in ("cross-site", "same-site")
        and headers.get("sec-fetch-mode") == "navigate"
    )


_NOT_FOUND = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.GROUP_ID_NOT_FOUND}


def _status(error: ClientError) -> int:
    if isinstance(error, ClientRefusedError):
        return 403
    if not isinstance(error, AnswerError):
        return 502
    if error.code in _NOT_FOUND:
        return 404
    if error.code.name.endswith("AUTHORIZATION_FAILED"):
        return 403
    return 502 if error.code.retriable else 400
