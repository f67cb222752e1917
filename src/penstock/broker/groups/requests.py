"""The common part of the handlers of the group APIs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.groups.core import Client
from penstock.wire.texts import fitting

if TYPE_CHECKING:
    from penstock.wire.exchange import Request

R = TypeVar("R")


def client_of(request: Request) -> Client:
    """Who asks, with the host spelled as Kafka's tools show it. A name that is not UTF-8 grows when it is
    read."""
    return Client(fitting(request.client_id or ""), "/" + request.session.peer_host)


def mapped(answer: R | Awaitable[R], change: Callable[[R], R]) -> R | Awaitable[R]:
    """The answer after `change`, now or when it is there."""
    if isinstance(answer, Awaitable):
        return _mapped_later(answer, change)
    return change(answer)


async def _mapped_later(answer: Awaitable[R], change: Callable[[R], R]) -> R:
    return change(await answer)
