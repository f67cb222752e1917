"""The report of each answered request, and the throttle time that its answer carries.

A `Hook` sees every request of a broker, including requests on the fast way of their connection. Metrics and
quotas belong there: it returns how many milliseconds the client is to wait, and the answer says so
(`throttle_time_ms`). A broker without a hook measures nothing, and its requests do not come by here.

A `Start` sees a request as soon as its handler has it, before the next one of the connection. What a client
sends is counted there: at the answer, all that it pipelined would have passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.registry import APIS, Api
from penstock.wire.buffers import Buffer
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Relay, Reply, Request, Session
from penstock.wire.headers import response_header
from penstock.wire.layout import FIXED, layout_of

if TYPE_CHECKING:
    from penstock.broker.metering import Meters
    from penstock.clock import Clock

log = logging.getLogger(__name__)

_KEY_AND_VERSION = Struct(">hh")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_THROTTLE = "throttle_time_ms"
FETCH = 1

Fast = Callable[[memoryview, bool], Reply | None]
Answer = list[Buffer] | Reply | None
Handle = Callable[[Request], Answer]


class Seen(NamedTuple):
    """One request that was answered."""

    api: Api
    version: int
    error: ErrorCode | None
    """The code of the whole answer, where it has one in a fixed place. Codes of topics, partitions and other
    items are not looked for. NETWORK_EXCEPTION: the connection was closed instead."""
    request_bytes: int
    answer_bytes: int
    seconds: float
    busy_seconds: float = 0.0
    """How much of that the broker did nothing else: until the handler returned or began to wait."""
    client_id: str = ""
    delayed_ms: int = 0
    """What `Start` said of it."""


Start = Callable[[Session, Api, int, str], int]
"""Called once for each request, with its size and client id; returns how long its client waits from then on,
in milliseconds. The hook decides what the answer says."""
Hook = Callable[[Session, Seen], int]
"""Called once for each request; returns its throttle time in milliseconds."""


def observed(
    handle: Handle, hook: Hook, clock: Clock, meters: Meters | None = None, start: Start | None = None
) -> Handle:
    """`handle`, seen by the hook, and by `start`. Throttled requests are counted in `meters`."""
    if meters is not None:
        hook = counted(hook, meters)

    def observed_handle(request: Request) -> Answer:
        api = APIS.get(request.api_key)
        if api is None:
            return handle(request)
        session = request.session
        client_id = request.client_id or ""
        watch = _Watch(hook, clock, session, api, request.api_version, len(request.frame), client_id)
        answer = handle(request)
        watch.handled(start)
        fast = session.fast
        if fast is not None and not (isinstance(fast, _ObservedFast) and fast.is_seen_by(hook)):
            session.fast = _ObservedFast(fast, hook, clock, session, client_id, start)
        return watch.over(answer) if isinstance(answer, Reply) else watch.answered(answer)

    return observed_handle


def counted(hook: Hook, meters: Meters) -> Hook:
    """The hook, with throttled requests counted in `meters`."""

    def counted_hook(session: Session, seen: Seen) -> int:
        throttle_ms = hook(session, seen)
        if throttle_ms > 0:
            meters.throttled += 1
            meters.throttled_ms += throttle_ms
        return throttle_ms

    return counted_hook


class _ObservedFast:
    """The fast way of a connection, seen by the hook."""

    __slots__ = ("_client_id", "_clock", "_fast", "_hook", "_session", "_start")

    def __init__(
        self,
        fast: Fast,
        hook: Hook,
        clock: Clock,
        session: Session,
        client_id: str,
        start: Start | None,
    ) -> None:
        """`client_id`: that of the request which found the fast way. Others do not go it."""
        self._client_id = client_id
        self._fast = fast
        self._hook = hook
        self._clock = clock
        self._session = session
        self._start = start

    def is_seen_by(self, hook: Hook) -> bool:
        """Several hooks may see one way, each once."""
        inner = self._fast
        return self._hook == hook or (isinstance(inner, _ObservedFast) and inner.is_seen_by(hook))

    def __call__(self, frame: memoryview, owned: bool) -> Reply | None:
        api_key, version = _KEY_AND_VERSION.unpack_from(frame)
        api = APIS.get(api_key)
        if api is None:
            return None
        watch = _Watch(self._hook, self._clock, self._session, api, version, len(frame), self._client_id)
        reply = self._fast(frame, owned)
        if reply is None:
            return None  # It comes again, by the general way.
        watch.handled(self._start)
        return watch.over(reply)


class _Watch:
    """One request, from when it is handed over until it is answered."""

    __slots__ = (
        "_api", "_began", "_busy_seconds", "_client_id", "_clock", "_delayed_ms", "_hook", "_request_bytes",
        "_session", "_version",
    )  # fmt: skip

    def __init__(
        self,
        hook: Hook,
        clock: Clock,
        session: Session,
        api: Api,
        version: int,
        request_bytes: int,
        client_id: str,
    ) -> None:
        self._client_id = client_id
        self._busy_seconds = 0.0
        self._delayed_ms = 0
        self._hook = hook
        self._clock = clock
        self._session = session
        self._api = api
        self._version = version
        self._request_bytes = request_bytes
        self._began = clock.monotonic()

    def handled(self, start: Start | None) -> None:
        """The handler returned. What it waits for takes no time of the broker's."""
        self._busy_seconds = self._clock.monotonic() - self._began
        if start is None:
            return
        try:
            self._delayed_ms = start(self._session, self._api, self._request_bytes, self._client_id)
        except Exception:
            log.exception("a request could not be counted api=%s", self._api.name)

    def over(self, reply: Reply) -> Reply:
        """The reply to give instead of this one."""
        relay = _WatchedReply(self)
        relay.exclusive = reply.exclusive
        relay.holds_request = reply.holds_request
        relay.become(reply)
        return relay

    def answered(self, buffers: list[Buffer] | None) -> list[Buffer] | None:
        """Tell the hook of the answer; the answer with the throttle time that the hook wants."""
        api, version = self._api, self._version
        error = None if buffers is None else error_in(api, version, buffers)
        throttle_ms = self.tell(error, sum(map(len, buffers or ())))
        if buffers is None or throttle_ms <= 0:
            return buffers
        if api.key == FETCH:
            buffers = emptied(api, version, buffers)
        return throttled(api, version, buffers, throttle_ms)

    def tell(self, error: ErrorCode | None, answer_bytes: int) -> int:
        seconds = self._clock.monotonic() - self._began
        busy = self._busy_seconds or seconds
        seen = Seen(
            self._api,
            self._version,
            error,
            self._request_bytes,
            answer_bytes,
            seconds,
            busy,
            self._client_id,
            self._delayed_ms,
        )
        try:
            return self._hook(self._session, seen)
        except Exception:
            log.exception("a hook failed api=%s", self._api.name)
            return 0


class _WatchedReply(Relay):
    __slots__ = ("_watch", "holds_request")

    def __init__(self, watch: _Watch) -> None:
        Relay.__init__(self)
        self._watch = watch
        self.holds_request = True

    def _answer(self, other: Reply) -> None:
        if other.closed:
            self._watch.tell(ErrorCode.NETWORK_EXCEPTION, 0)
            self.close()
        else:
            self.complete(self._watch.answered(other.buffers))


# -- fields of encoded answers ---------------------------------------------------------------------------


def error_in(api: Api, version: int, buffers: Sequence[Buffer]) -> ErrorCode | None:
    """The code of a whole answer, unless it is none."""
    at = place(api, version, "error_code")
    if at is None:
        return None
    code = ErrorCode(_INT16.unpack_from(_beginning(buffers, at + 2), at)[0])
    return None if code is ErrorCode.NONE else code


def throttled(api: Api, version: int, buffers: list[Buffer], throttle_ms: int) -> list[Buffer]:
    """The answer with a throttle time in it, if it has a place for one in this version. Records are not
    copied: Fetch has the place at its beginning."""
    if not api.min_version <= version <= api.max_version:
        return buffers
    _request_class, response_class = api.messages()
    if not any(field.name == _THROTTLE for field in layout_of(response_class, version).plain):
        return buffers
    at = place(api, version, _THROTTLE)
    if at is None:
        data = memoryview(b"".join(buffers))
        start = _header_bytes(api, version)
        response, _end = decode(response_class, version, data, start)
        response.throttle_time_ms = throttle_ms
        return [bytes(data[:start]), encode(response, version)]
    count = 1
    while sum(map(len, buffers[:count])) < at + 4:
        count += 1
    beginning = bytearray(b"".join(buffers[:count]))
    _INT32.pack_into(beginning, at, throttle_ms)
    return [beginning, *buffers[count:]]


def emptied(api: Api, version: int, buffers: list[Buffer]) -> list[Buffer]:
    """A Fetch without records: who is throttled asks for them again later (KIP-219). A session goes on."""
    response = api.messages()[1]()
    at = place(api, version, "session_id")
    if at is not None:
        response.session_id = _INT32.unpack_from(_beginning(buffers, at + 4), at)[0]
    header = bytes(_beginning(buffers, 16))[: _header_bytes(api, version)]
    return [header, encode(response, version)]


def _beginning(buffers: Sequence[Buffer], size: int) -> Buffer:
    return buffers[0] if len(buffers[0]) >= size else b"".join(buffers)


@cache
def place(api: Api, version: int, name: str) -> int | None:
    """Where a field of the response stands in an answer, if only fields of fixed size come before it."""
    if not api.min_version <= version <= api.max_version:
        return None
    at = _header_bytes(api, version)
    for field in layout_of(api.messages()[1], version).plain:
        if field.name == name:
            return at
        if field.type.kind not in FIXED:
            return None
        at += FIXED[field.type.kind][1]
    return None


def _header_bytes(api: Api, version: int) -> int:
    return len(response_header(api.key, version, 0))
