"""The SASL conversation of one connection, around an exchange that is handed in.

- Before the login only ApiVersions (once; again after a version that is not served), SaslHandshake and
  SaslAuthenticate are served. Anything else closes the connection, unanswered.
- After handshake version 1 tokens travel in SaslAuthenticate. After version 0 they are bare frames, and a
  failure just closes.
- A mechanism that is not offered: UNSUPPORTED_SASL_MECHANISM with those that are, then the connection is
  closed. A login that fails: SASL_AUTHENTICATION_FAILED after a delay, then the same.
- The login may have an end (KIP-368). The client is told, and logs in again on the same connection: with the
  same mechanism, as the same principal, once in a second at most. After the end any other request closes.
- Where a login has no end, a second handshake goes to the handlers, which say ILLEGAL_SASL_STATE.
- A login ends with the user or the delegation token that it was judged by. Kafka lets it go on.

An address whose logins fail often waits longer for each answer. Who logs in rightly beside it does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING

from penstock.security.sasl.exchange import Challenge, Done, Exchange, Failed, invalid_credentials
from penstock.server.sizes import FRAME_BYTES_MIN
from penstock.wire.api.api_versions import ApiVersionsRequest
from penstock.wire.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from penstock.wire.buffers import Buffer
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.exchange import Reply, Request
from penstock.wire.headers import response_header
from penstock.wire.schema import ApiMessage

if TYPE_CHECKING:
    from penstock.server.connection import Connection
    from penstock.server.server import Server

log = logging.getLogger(__name__)

VERSIONS, HANDSHAKE, AUTHENTICATE = (
    ApiVersionsRequest.api_key,
    SaslHandshakeRequest.api_key,
    SaslAuthenticateRequest.api_key,
)
AGAIN_SECONDS = 1.0
"""A client logs in again at most so often on one connection."""
WINDOW_SECONDS = 10.0
FAILURE_DELAY_SECONDS_MAX = 5.0
HOSTS_MAX = 10_000
LINES_MAX = 20
"""Lines about refused logins in one window; further ones are counted."""

Answer = list[Buffer] | Reply | None


class Logins:
    """The logins of one listener."""

    def __init__(
        self,
        mechanisms: tuple[str, ...],
        exchange: Callable[[str], Exchange],
        now_ms: Callable[[], int],
        *,
        reauth_ms: Mapping[str, int] | None = None,
        frame_bytes_max: int = 524_288,
        failure_delay_ms: int = 100,
        stands: Callable[[tuple[str, str]], bool] = lambda _basis: True,
    ) -> None:
        """`exchange` begins one with a mechanism. `reauth_ms`: by mechanism, how long a login lasts at
        most. `stands`: whether what a login was judged by is still there."""
        self.mechanisms = mechanisms
        self.exchange = exchange
        self.now_ms = now_ms
        self.reauth_ms = reauth_ms or {}
        self.stands = stands
        self.frame_bytes_max = frame_bytes_max
        self._failure_delay = failure_delay_ms / 1000
        self._failures: dict[str, int] = {}
        self._lines = 0
        self._window_ends = 0.0

    def begin(self, connection: Connection, server: Server) -> Login:
        """Nothing of this connection gets to the handlers before its login."""
        login = Login(self, connection, server)
        connection.serve(login.before, FRAME_BYTES_MIN, self.frame_bytes_max)
        return login

    def failed(self, host: str, now: float, limit: int) -> float:
        """Count a failure of an address: how many seconds its answer waits."""
        if now >= self._window_ends or len(self._failures) > HOSTS_MAX:
            if self._lines > LINES_MAX:
                log.warning("refused logins that were not logged; count=%d", self._lines - LINES_MAX)
            self._window_ends = now + WINDOW_SECONDS
            self._failures.clear()
            self._lines = 0
        count = self._failures[host] = self._failures.get(host, 0) + 1
        self._lines += 1
        return min(
            self._failure_delay * max(1.0, count / limit), max(FAILURE_DELAY_SECONDS_MAX, self._failure_delay)
        )

    @property
    def may_log(self) -> bool:
        return self._lines <= LINES_MAX


class _At(Enum):
    FIRST = auto()
    HANDSHAKE = auto()
    """The versions were told."""
    TOKEN = auto()
    BARE_TOKEN = auto()
    """After a handshake of version 0."""
    WRONG_MECHANISM = auto()
    """A login again, with another mechanism: the next token fails."""
    OVER = auto()


class Login:
    """One connection's."""

    __slots__ = (
        "_again_at",
        "_at",
        "_basis",
        "_client_id",
        "_connection",
        "_ends",
        "_exchange",
        "_logins",
        "_loop",
        "_mechanism",
        "_principal",
        "_server",
    )

    def __init__(self, logins: Logins, connection: Connection, server: Server) -> None:
        self._logins = logins
        self._connection = connection
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._at = _At.FIRST
        self._client_id: str | None = None
        """As its handshake says: bare tokens do not."""
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._principal: str | None = None
        """Who logged in before, on this connection."""
        self._basis: tuple[str, str] | None = None
        """What that login was judged by, if it can be taken away."""
        self._ends: asyncio.TimerHandle | None = None
        self._again_at = 0.0

    # -- the handles of the connection, one after the other ------------------------------------------------

    def before(self, request: Request) -> Answer:
        """A request before the login is over."""
        key, at = request.api_key, self._at
        if key == VERSIONS and at is _At.FIRST and self._principal is None:
            if 0 <= request.api_version <= ApiVersionsRequest.max_version:
                self._at = _At.HANDSHAKE
            return self._server.handle(request)
        if key == HANDSHAKE and at in (_At.FIRST, _At.HANDSHAKE):
            return self._shaken(request)
        if key == AUTHENTICATE and at in (_At.TOKEN, _At.WRONG_MECHANISM):
            return self._token(request)
        raise WireError(f"a request came before the login (api_key={key})")

    def after(self, request: Request) -> Answer:
        """A request of a client that logged in."""
        if request.api_key != HANDSHAKE or self._ends is None:
            return self._server.handle(request)
        now = self._loop.time()
        if now < self._again_at:
            return self._server.handle(request)
        return self._begin_again(request, now)

    def expired(self, request: Request) -> Answer:
        """A request after the end of the login."""
        now = self._loop.time()
        if request.api_key != HANDSHAKE or now < self._again_at:
            raise WireError("the login had ended")
        return self._begin_again(request, now)

    def _begin_again(self, request: Request, now: float) -> Answer:
        self._again_at = now + AGAIN_SECONDS
        self._at = _At.FIRST
        session = self._connection.session
        session.fast = None
        self._connection.serve(self.before, FRAME_BYTES_MIN, self._logins.frame_bytes_max)
        return self._shaken(request)

    # -- steps ---------------------------------------------------------------------------------------------

    def _shaken(self, request: Request) -> Answer:
        """The client chose a mechanism."""
        if not 0 <= request.api_version <= SaslHandshakeRequest.max_version:
            raise WireError("an unknown version of SaslHandshake")
        message, _end = decode(SaslHandshakeRequest, request.api_version, request.frame, request.body_at)
        self._client_id = request.client_id
        mechanism, offered = message.mechanism, self._logins.mechanisms
        if mechanism not in offered:
            response = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=list(offered)
            )
            self._tell("a mechanism that is not offered", mechanism)
            return self._last_word(_encoded(request, response))
        if self._principal is not None and mechanism != self._mechanism:
            self._at = _At.WRONG_MECHANISM
        else:
            self._mechanism = mechanism
            self._exchange = self._logins.exchange(mechanism)
            self._at = _At.TOKEN
        if request.api_version == 0:
            self._at = _At.BARE_TOKEN
            self._connection.session.fast = self._bare_token
            self._connection.serve(self.before, 0, self._logins.frame_bytes_max)
        return _encoded(request, SaslHandshakeResponse(mechanisms=list(offered)))

    def _token(self, request: Request) -> Answer:
        if not 0 <= request.api_version <= SaslAuthenticateRequest.max_version:
            raise WireError("an unknown version of SaslAuthenticate")
        message, _end = decode(SaslAuthenticateRequest, request.api_version, request.frame, request.body_at)
        step = self._respond(bytes(message.auth_bytes))
        if isinstance(step, Failed):
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=step.message
            )
            return self._failed(step, _encoded(request, response))
        lifetime_ms = self._let_in(step) if isinstance(step, Done) else 0
        return _encoded(
            request,
            SaslAuthenticateResponse(
                error_message="", auth_bytes=step.token, session_lifetime_ms=lifetime_ms
            ),
        )

    def _bare_token(self, frame: memoryview, owned: bool) -> Reply:
        step = self._respond(bytes(frame))
        if isinstance(step, Failed):
            return self._failed(step, None)
        if isinstance(step, Done):
            self._let_in(step)
        reply = Reply()
        reply.complete([step.token])
        return reply

    def _respond(self, token: bytes) -> Challenge | Done | Failed:
        if self._exchange is None or self._at is _At.WRONG_MECHANISM:
            return Failed(
                f"SASL mechanism is not supported for re-authentication of mechanism '{self._mechanism}'",
                "another mechanism than before",
            )
        step = self._exchange.respond(token, self._logins.now_ms())
        if isinstance(step, Done) and step.basis is not None and not self._logins.stands(step.basis):
            return Failed(invalid_credentials(self._mechanism), f"{step.basis[1]!r} was removed meanwhile")
        if isinstance(step, Done) and self._principal not in (None, step.principal):
            return Failed(
                f"Cannot change principals during re-authentication from {self._principal}",
                f"another principal than before, {step.principal!r}",
            )
        return step

    def _let_in(self, done: Done) -> int:
        """The client is known: how long, in milliseconds; 0 if there is no end."""
        connection, logins = self._connection, self._logins
        self._at = _At.OVER
        self._exchange = None
        self._principal, self._basis = done.principal, done.basis
        session = connection.session
        session.principal = done.principal
        session.state["by_token"] = done.by_token
        session.fast = None
        limits = [one for one in (logins.reauth_ms.get(self._mechanism, 0), done.lifetime_ms) if one]
        if done.lifetime_ms == 0:
            limits = [1]
        self._stop_timer()
        if limits:
            self._ends = self._loop.call_later(min(limits) / 1000, self._end)
        connection.serve(self.after, FRAME_BYTES_MIN, self._server.limits.frame_bytes_max)
        self._server.let_in(connection)
        return min(limits, default=0)

    def _end(self) -> None:
        """The login is over. What is under way is answered."""
        if self._at is _At.OVER:
            self._connection.session.fast = None
            self._connection.serve(self.expired, FRAME_BYTES_MIN, self._server.limits.frame_bytes_max)

    def _stop_timer(self) -> None:
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None

    def review(self) -> None:
        """Users or tokens were removed: end the connection of one of them. What is under way is answered."""
        if self._basis is not None and not self._logins.stands(self._basis):
            self._tell(f"{self._principal!r} was logged in, and was removed", self._mechanism)
            self._connection.stop()

    def lost(self) -> None:
        """The connection is gone."""
        self._stop_timer()

    # -- failures ------------------------------------------------------------------------------------------

    def _failed(self, failed: Failed, answer: list[Buffer] | None) -> Reply:
        self._at = _At.OVER
        self._exchange = None
        session = self._connection.session
        seconds = self._logins.failed(
            session.peer_host, self._loop.time(), self._server.limits.failures_per_host_max
        )
        self._tell(failed.reason, self._mechanism)
        reply = Reply()
        self._loop.call_later(seconds, self._say_and_close, reply, answer)
        return reply

    def _last_word(self, answer: list[Buffer]) -> Reply:
        reply = Reply()
        self._loop.call_soon(self._say_and_close, reply, answer)
        return reply

    def _say_and_close(self, reply: Reply, answer: list[Buffer] | None) -> None:
        if answer is None:
            reply.close()
            return
        reply.complete(answer)
        self._connection.close()

    def _tell(self, why: str, mechanism: str) -> None:
        if self._logins.may_log:
            session = self._connection.session
            log.warning(
                # A name in it is as long as a token may be.
                "refused a login: %.300s; mechanism=%.32r client=%.100r peer=%s listener=%s",
                why,
                mechanism,
                self._client_id,
                session.peer_host,
                session.listener,
            )


def _encoded(request: Request, response: ApiMessage) -> list[Buffer]:
    version = request.api_version
    return [response_header(request.api_key, version, request.correlation_id), encode(response, version)]
