"""Small answers that are sent whole."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from uvicorn._types import ASGISendCallable


class Page(NamedTuple):
    """One answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK
    headers: tuple[tuple[bytes, bytes], ...] = ()


def plain(status: int, words: str = "") -> Page:
    """A page that says only what became of the request."""
    return Page(f"{words or HTTPStatus(status).phrase}\n".encode(), status=status)


async def send_page(send: ASGISendCallable, page: Page) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": page.status,
            "headers": [
                (b"content-type", page.content_type.encode()),
                (b"content-length", b"%d" % len(page.body)),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
                *page.headers,
            ],
            "trailers": False,
        }
    )
    await send({"type": "http.response.body", "body": page.body, "more_body": False})
