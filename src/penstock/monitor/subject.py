"""The broker that is watched, as the monitor sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.server.server import Server
    from penstock.storage.stores.objects import ObjectStore


class Serving(NamedTuple):
    """The parts of an incarnation that accepts and serves."""

    broker: Broker
    server: Server
    store: ObjectStore


class Subject(Protocol):
    """One broker process."""

    @property
    def serving(self) -> Serving | None:
        """None while it starts, and between an incarnation that ended and the next one."""

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop: it drains, or will at once."""
