"""One request of a visitor, as a page sees it, and how a page says which requests are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock.client import Client
from penstock.console.addresses import name_of

if TYPE_CHECKING:
    from penstock.console.application import Console
    from penstock.console.cluster import Cluster

T = TypeVar("T")

PAGE = 50
"""Rows that a page of a list shows."""
UNWRITABLE = "backslashreplace"
"""JSON can hold halves of characters, and UTF-8 cannot: no record may break the page that shows it."""
DIGITS_MAX = 18
SAID_SECONDS = 60
"""How long a sentence waits for the page that shows it."""


class Visit:
    def __init__(
        self, console: Console, request: Request, cluster: Cluster, name: str, user: str | None
    ) -> None:
        self.console = console
        self.request = request
        self.cluster = cluster
        self.name = name
        """The visitor's cookie."""
        self.user = user
        """Who logged in; None where nobody needs to."""
        self.form: dict[str, str] = {}
        """The fields of a form that was sent. Of a repeated one, the last."""

    @property
    def path(self) -> str:
        """As it was asked for: names in it are quoted."""
        path: str = self.request.scope["path"]
        return path

    def argument(self, name: str) -> str:
        """A name that is a part of the path."""
        return name_of(self.request.path_params[name])

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default).strip()

    def number(self, name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
        """A number of the query; `default` if it is none."""
        found = whole_number(self.query(name))
        return default if found is None else min(max(found, least), most)

    def paged(self, found: Sequence[T], size: int = PAGE) -> tuple[Sequence[T], int, int]:
        """The page of a list that the query names: what is on it, its number, and how many there are."""
        pages = max(1, -(-len(found) // size))
        number = self.number("page", 1, 1, pages)
        return found[(number - 1) * size : number * size], number, pages

    def client(self) -> AbstractContextManager[Client]:
        """A client with the visitor's rights, for this page alone."""
        return self.cluster.client()

    def link(self, **changed: str | int | None) -> str:
        """The address of this page with other fields in its query; None takes one out."""
        fields = {**self.request.query_params, **changed}
        kept = {key: value for key, value in fields.items() if value not in (None, "")}
        return f"{self.path}?{urlencode(kept)}" if kept else self.path

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        said = self.console.heard(self.request)
        text = self.console.templates.get_template(template).render(
            visit=self, said=said, token=self.console.tokens.of(self.name), console=self.console, **values
        )
        answer = HTMLResponse(text.encode(errors=UNWRITABLE), status, {"cache-control": "no-store"})
        if said:
            answer.delete_cookie(self.console.cookie(self.request, "said"))
        return answer

    def done(self, where: str, sentence: str) -> Response:
        """After a form: go to a page, which begins with the sentence. The caller has changed something."""
        self.cluster.forget()
        answer = RedirectResponse(where, 303)
        self.console.say(answer, self.request, sentence)
        return answer


Run = Callable[[Visit], Response]
Follow = Callable[[Visit], "Iterator[Event | None]"]


class Event(NamedTuple):
    """One message to a page that follows something (server-sent events)."""

    name: str
    data: str
    """HTML or JSON."""


class Handler(NamedTuple):
    """A page, or a part of one: what it answers, and where."""

    path: str
    method: Literal["GET", "POST"]
    run: Run | None
    follow: Follow | None = None
    open: bool = False
    """Without a login."""


def page(
    path: str, *, method: Literal["GET", "POST"] = "GET", open: bool = False
) -> Callable[[Run], Handler]:
    """Declare a function as what answers at `path`. It runs in a thread and may block."""

    def declare(run: Run) -> Handler:
        return Handler(path, method, run, open=open)

    return declare


def stream(path: str) -> Callable[[Follow], Handler]:
    """Declare a generator as what follows something at `path`, for as long as the page is open.

    It yields events, and None at least twice a second while there are none: then it is looked whether the
    page is still there. It runs in a thread and may block so long.
    """

    def declare(follow: Follow) -> Handler:
        return Handler(path, "GET", None, follow)

    return declare


def whole_number(text: str) -> int | None:
    """A number that fits where Kafka has 64 bits; None if the text is none. Spaces as pages have them between
    thousands are taken, because people copy what they see."""
    digits = "".join(text.split())
    if not (digits.isascii() and digits.isdigit()) or len(digits) > DIGITS_MAX:
        return None
    return int(digits)


def cookie_text(text: str) -> str:
    return quote(text, safe="")


def text_of_cookie(text: str) -> str:
    return unquote(text)
