"""One request and its answer, as the server and the broker hand them to each other.

The server makes a `Session` per connection and a `Request` per frame, and calls one function,
`handle(request)`. That function returns the answer as a list of buffers (without the length that precedes it
on the wire), or a `Reply` that will be completed later, or None where the protocol has no answer.

Answers leave in the order of their requests. While a Reply is `exclusive` the server starts no further
request of that connection. This is Kafka's rule, and it keeps effects in order. A handler whose requests may
overlap (Produce) clears the flag before it returns.

`Request.frame` is only lent for the duration of the call, unless `owned` is set: the server parses most
frames in a buffer that it uses again at once. A handler copies the bytes that it keeps.
"""

from collections.abc import Callable
from typing import Any, Protocol

from penstock.wire.buffers import Buffer


class Account(Protocol):
    """The server's account of the bytes of requests and answers. Beyond the limit it starts nothing new."""

    limit: int
    used: int

    @property
    def exhausted(self) -> bool:
        """Nothing more is to be read for anybody until some is given back."""

    def hold(self, size: int) -> None: ...

    def free(self, size: int) -> None: ...


class Session:
    """The state of one connection for as long as it lasts."""

    __slots__ = (
        "client_software_name",
        "client_software_version",
        "fast",
        "listener",
        "memory",
        "mute",
        "peer_host",
        "principal",
        "state",
    )

    def __init__(self, listener: str = "PLAINTEXT", peer_host: str = "") -> None:
        self.principal = "User:ANONYMOUS"
        self.listener = listener
        self.peer_host = peer_host
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        self.fast: Callable[[memoryview, bool], Reply | None] | None = None
        """A shorter way that a handler found for requests like this connection's last one. The server tries
        it first, with the frame and whether it is owned; None: the frame is to go through `handle`. What it
        found out about the principal holds with it: who changes the principal clears this."""
        self.memory: Account | None = None
        """Where a handler that is about to hold much memory says so. None where nobody counts."""
        self.mute: Callable[[float], None] | None = None
        """Start no further request of this connection for so many seconds. None where there is nobody who
        could."""
        self.state: dict[str, Any] = {}
        """Whatever else a handler keeps per connection."""


_NO_FRAME = memoryview(b"")


class Request:
    """One frame, its header parsed."""

    __slots__ = (
        "api_key",
        "api_version",
        "body_at",
        "client_id",
        "correlation_id",
        "frame",
        "owned",
        "session",
    )

    def __init__(
        self,
        session: Session,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        frame: memoryview,
        body_at: int,
        owned: bool = False,
    ) -> None:
        self.session = session
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.frame = frame
        self.body_at = body_at
        self.owned = owned

    def keep_frame(self) -> None:
        """From here on the frame is the handler's own, whatever the server does with its buffer."""
        if not self.owned:
            self.frame = memoryview(bytearray(self.frame))
            self.owned = True

    def let_go(self) -> None:
        """The message was read, and nobody needs the frame any more."""
        self.frame = _NO_FRAME
        self.owned = True


class Reply:
    """An answer that comes later. It is completed or closed exactly once; every later call is ignored."""

    holds_request: bool = True
    """Whether the request stays in memory until the answer is there, and counts so long."""

    __slots__ = (
        "_notify", "buffers", "closed", "done", "exclusive", "on_abandon", "on_hurry", "seen", "weight"
    )  # fmt: skip

    def __init__(self) -> None:
        self.buffers: list[Buffer] | None = None
        self.done = False
        self.closed = False
        """The connection is to be closed instead of answered."""
        self.exclusive = True
        self.weight = 0
        """Bytes of the request, which count as memory in flight until the answer is there."""
        self.on_abandon: Callable[[], None] | None = None
        """Called if the connection is lost before the answer is there: nobody waits any more."""
        self.on_hurry: Callable[[], None] | None = None
        """Called when the broker drains: complete soon, with what there is (a long poll, for one)."""
        self.seen: Callable[[Reply], None] | None = None
        """Called when the reply is done, before its server hears of it: for those who only watch."""
        self._notify: Callable[[Reply], None] | None = None

    def complete(self, buffers: list[Buffer] | None) -> None:
        """Answer with these buffers; None: nothing is to be sent (Produce with acks=0)."""
        if not self.done:
            self.buffers = buffers
            self._conclude()

    def close(self) -> None:
        """Close the connection instead of answering."""
        if not self.done:
            self.closed = True
            self._conclude()

    def _conclude(self) -> None:
        self.done = True
        notify = self._notify
        # A handler's callbacks usually refer to the reply: without them it is freed as soon as it is sent,
        # and with it what it holds of the log, without waiting for the collector of cycles.
        self.on_abandon = self.on_hurry = self._notify = None
        if self.seen is not None:
            seen, self.seen = self.seen, None
            seen(self)
        if notify is not None:
            notify(self)

    def when_done(self, notify: "Callable[[Reply], None]") -> None:
        """For the server: call `notify` once the reply is done (at once if it already is)."""
        if self.done:
            notify(self)
        else:
            self._notify = notify


class Relay(Reply):
    """A reply whose answer is another's, which is made later."""

    __slots__ = ("_hurried", "_lost")

    def __init__(self) -> None:
        Reply.__init__(self)
        self._lost = self._hurried = False
        self.on_abandon = self._lose
        self.on_hurry = self._hurry

    def _lose(self) -> None:
        self._lost = True

    def _hurry(self) -> None:
        self._hurried = True

    def become(self, other: Reply) -> None:
        """Answer as `other` does. What the server said meanwhile is said to it."""
        if not other.done:
            self.on_abandon, self.on_hurry = other.on_abandon, other.on_hurry
            if self._lost and other.on_abandon is not None:
                other.on_abandon()
            elif self._hurried and other.on_hurry is not None:
                other.on_hurry()
        other.when_done(self._answer)

    def _answer(self, other: Reply) -> None:
        if other.closed:
            self.close()
        else:
            self.complete(other.buffers)


class LightRelay(Relay):
    """One for a request that waits for others, for minutes, and does not stay in memory meanwhile."""

    holds_request = False

    __slots__ = ()
