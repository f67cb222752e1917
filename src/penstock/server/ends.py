"""What TLS needs of its two ends: of the server that it works for, and of the connection that it works under.

Listeners of Kafka's protocol and the HTTP port have the same TLS, so that a trick that one withstands is none
for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio

    from penstock.server.handshakes import Handshakes


class Known(Protocol):
    """What is known of a peer."""

    peer_host: str
    principal: str
    listener: str


class Upper(Protocol):
    """The connection that is given data and not ciphertext."""

    @property
    def session(self) -> Known: ...

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there. Data comes later."""

    def connection_lost(self, exc: Exception | None) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...

    def eof_received(self) -> bool: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Side(Protocol):
    """The server."""

    cipher_view: memoryview
    """Where ciphertext is received."""
    handshakes: Handshakes

    @property
    def later(self) -> Callable[..., object]:
        """Call a function in the next turn of the loop."""

    def let_in(self, connection: Any) -> None:
        """The handshake is over, and nothing more is asked."""
