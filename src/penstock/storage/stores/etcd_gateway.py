"""Requests to an etcd cluster through the JSON gateway that every member serves, on connections kept open.

A request goes to one member. If that member does not answer in time, refuses, or says that the cluster has no
leader just now, the next one is asked, after a short pause once all were asked. The member that answered last
is asked first the next time. A request without an answer may have taken effect or not; `Answer.sure` says
whether there was one such before the answer.

Every etcd since 3.4 has the gateway, so no client library with its own gRPC runtime is needed.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from penstock.entropy import SYSTEM, Entropy
from penstock.storage.stores.objects import (
    StoreError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)

ATTEMPT_SECONDS = 0.5
"""How long one member may take. What a follower sent on to a leader that died is never answered, and while a
new one is elected, a heartbeat must not wait long for that."""
QUICK_ROUNDS = 3
SLOW_SECONDS = 2.0
"""The same after all members were asked so often: an etcd that is merely slow is waited for in the end."""
REQUEST_SECONDS = 8.0
"""How long a request may take in all. A broker is fenced after nine seconds of silence by default."""
PAUSE_FIRST_SECONDS = 0.05
PAUSE_MAX_SECONDS = 0.25
IDLE_CONNECTIONS_MAX = 8
ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""An answer is a page of values of which each is small; this bounds what a confused peer can make us hold."""
HEADER_BYTES_MAX = 64 * 1024

# What gRPC calls the reasons, as far as they differ for us.
_INVALID, _DENIED, _EXHAUSTED, _PRECONDITION, _UNAUTHENTICATED = 3, 7, 8, 9, 16
_OUT_OF_RANGE = 11


class Answer(NamedTuple):
    body: bytes
    sure: bool
    """No earlier attempt of this request can have taken effect."""


class CompactedError(StoreError):
    """The history asked for is gone already."""


class _AttemptError(Exception):
    """One member did not answer, or not with an answer to the question; another may."""

    def __init__(self, reason: str, *, sure: bool) -> None:
        super().__init__(reason)
        self.sure = sure
        """The request certainly had no effect."""


class _Failure(msgspec.Struct):
    code: int = 2
    message: str = ""
    error: str = ""


class _Token(msgspec.Struct):
    token: str = ""

    def __repr__(self) -> str:
        return "_Token()"


class _Header(msgspec.Struct):
    revision: int = 0


class _Answered(msgspec.Struct):
    """What each answer about keys says."""

    header: _Header


class Member(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Credentials(msgspec.Struct, frozen=True):
    """Our user and password, from the environment: an address that others can read must hold no secrets."""

    user: str = ""
    password: str = ""
    authorities: str = ""
    certificate: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, certificate={self.certificate!r})"


def credentials_from_environment() -> Credentials:
    get = os.environ.get
    return Credentials(
        user=get("PENSTOCK_ETCD_USER", ""),
        password=get("PENSTOCK_ETCD_PASSWORD", ""),
        authorities=get("PENSTOCK_ETCD_CACERT", ""),
        certificate=get("PENSTOCK_ETCD_CERT", ""),
        key=get("PENSTOCK_ETCD_KEY", ""),
    )


class Gateway:
    """The members of one etcd cluster, asked one after the other."""

    def __init__(
        self,
        members: list[Member],
        *,
        tls: bool = False,
        credentials: Credentials | None = None,
        idle_max: int = IDLE_CONNECTIONS_MAX,
        entropy: Entropy = SYSTEM,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        attempt_seconds: float = ATTEMPT_SECONDS,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._members = members
        self._credentials = credentials or Credentials()
        self._tls = _context(self._credentials) if tls else None
        self._entropy = entropy
        self._sleep = sleep
        self._idle_max = idle_max
        self._attempt_seconds = attempt_seconds
        self._request_seconds = request_seconds
        # Brokers begin with different members, so that one of them does not serve everybody.
        self._at = int(entropy.fraction() * len(members))
        self._idle: dict[Member, list[_Connection]] = {member: [] for member in members}
        self._token = ""
        self.requests = 0
        self.name = ",".join(str(member) for member in members)

    async def ask(self, path: str, message: object) -> Answer:
        """The answer to one request. StoreUnavailableError if no member gave one in time."""
        body = msgspec.json.encode(message)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request_seconds
        sure = True
        attempt = 0
        while True:
            member = self._members[self._at % len(self._members)]
            slow = attempt >= QUICK_ROUNDS * len(self._members)
            patience = max(SLOW_SECONDS, self._attempt_seconds) if slow else self._attempt_seconds
            seconds = min(patience, deadline - loop.time())
            sent = False
            try:
                async with asyncio.timeout(seconds):
                    if self._credentials.user and not self._token:
                        await self._authenticate(member)
                    sent = True
                    return Answer(await self._attempt(member, path, body), sure)
            except _AttemptError as error:
                sure = sure and (error.sure or not sent)
                reason = str(error)
            except CompactedError:
                raise
            except StoreError as error:
                if sure:
                    raise
                # Refused now, but an attempt before may have taken effect.
                raise StoreUnavailableError(str(error)) from error
            except TimeoutError:
                sure = sure and not sent
                reason = f"no answer within {seconds:.1f} s"
            self._at = (self._members.index(member) + 1) % len(self._members)
            attempt += 1
            pause = self._pause(attempt)
            if loop.time() + pause >= deadline:
                raise StoreUnavailableError(f"etcd at {self.name} is not available; {member}: {reason}")
            if pause:
                await self._sleep(pause)

    async def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    def _pause(self, attempt: int) -> float:
        rounds = attempt // len(self._members)
        if not rounds:
            return 0.0  # There is a member that was not asked yet.
        longest = min(PAUSE_MAX_SECONDS, PAUSE_FIRST_SECONDS * 2.0**rounds)
        return longest * (0.5 + self._entropy.fraction() / 2)

    async def _attempt(self, member: Member, path: str, body: bytes) -> bytes:
        status, answer = await self._exchange(member, path, body)
        if status == 200:
            return _from_etcd(answer)
        failure = _failure(answer, status)
        if failure.code == _UNAUTHENTICATED and self._token:
            # Tokens end with time, and with the member that gave them.
            self._token = ""
            await self._authenticate(member)
            status, answer = await self._exchange(member, path, body)
            if status == 200:
                return _from_etcd(answer)
            failure = _failure(answer, status)
        raise self._refusal(failure, member)

    async def _authenticate(self, member: Member) -> None:
        who = {"name": self._credentials.user, "password": self._credentials.password}
        status, answer = await self._exchange(member, "/v3/auth/authenticate", msgspec.json.encode(who))
        if status != 200:
            raise self._refusal(_failure(answer, status), member)
        self._token = _decode(answer, _Token).token

    def _refusal(self, failure: _Failure, member: Member) -> Exception:
        reason = failure.message or failure.error
        said = f"etcd at {member} refused: {reason}"
        if failure.code in (_DENIED, _UNAUTHENTICATED) or (
            failure.code == _INVALID and ("authentication" in reason or "user name" in reason)
        ):
            return StoreRefusedError(said)
        if failure.code == _EXHAUSTED and "space exceeded" in reason:
            return StoreFullError(said)
        if failure.code == _OUT_OF_RANGE:
            return CompactedError(said)
        if failure.code in (_INVALID, _PRECONDITION):
            return StoreError(said)
        # No leader, too many requests, timed out, stopping: another member, or a later attempt, may do. A
        # proposal that timed out inside of etcd may still be carried out.
        return _AttemptError(reason, sure=failure.code == _EXHAUSTED)

    # HTTP/1.1, as much of it as the gateway speaks.

    async def _exchange(self, member: Member, path: str, body: bytes) -> tuple[int, bytes]:
        self.requests += 1
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {member}\r\nContent-Type: application/json\r\n"
            # A member that sees no leader says so at once, instead of holding the request until there is one.
            f"Content-Length: {len(body)}\r\nGrpc-Metadata-hasleader: true\r\n"
        )
        if self._token:
            head += f"Authorization: {self._token}\r\n"
        request = f"{head}\r\n".encode() + body
        idle = self._idle[member]
        connection = idle.pop() if idle else None
        if connection is not None and connection.stale:
            connection.close()
            connection = None
        if connection is None:
            connection = await self._connect(member)
        try:
            status, answer, reusable = await connection.exchange(request)
        except EOFError as error:
            connection.close()
            wants = "" if self._tls else "; does it want TLS (etcds://)?"
            raise _AttemptError(f"the connection was closed without an answer{wants}", sure=False) from error
        except (OSError, ValueError) as error:
            connection.close()
            raise _AttemptError(str(error) or type(error).__name__, sure=False) from error
        except BaseException:
            connection.close()
            raise
        if reusable and len(idle) < self._idle_max:
            idle.append(connection)
        else:
            connection.close()
        return status, answer

    async def _connect(self, member: Member) -> "_Connection":
        try:
            reader, writer = await asyncio.open_connection(
                member.host, member.port, ssl=self._tls, limit=HEADER_BYTES_MAX
            )
        except ssl.SSLCertVerificationError as error:
            raise StoreError(f"etcd at {member} is not trusted: {error.verify_message}") from error
        except OSError as error:
            raise _AttemptError(error.strerror or str(error), sure=True) from error
        return _Connection(reader, writer)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @property
    def stale(self) -> bool:
        """The peer closed it while nobody used it."""
        return self._reader.at_eof() or self._reader.exception() is not None or self._writer.is_closing()

    async def exchange(self, request: bytes) -> tuple[int, bytes, bool]:
        """Status, body, and whether the connection can be used again."""
        self._writer.write(request)
        await self._writer.drain()
        line = await self._line()
        version, _, rest = line.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError("what answers is not an HTTP server")
        status = int(rest[:3])
        length, chunked, keep = -1, False, version == b"HTTP/1.1"
        while line := await self._line():
            name, _, value = line.partition(b":")
            match name.strip().lower(), value.strip().lower():
                case b"content-length", number:
                    length = int(number)
                case b"transfer-encoding", b"chunked":
                    chunked = True
                case b"connection", b"close":
                    keep = False
        if chunked:
            return status, await self._chunks(), keep
        if length < 0:
            return status, await self._to_end(), False
        _check_size(length)
        return status, await self._reader.readexactly(length), keep

    async def _line(self) -> bytes:
        line = await self._reader.readuntil(b"\n")
        return line.rstrip(b"\r\n")

    async def _chunks(self) -> bytes:
        body = bytearray()
        while size := int((await self._line()).partition(b";")[0], 16):
            _check_size(len(body) + size)
            body += await self._reader.readexactly(size)
            await self._line()
        while await self._line():
            pass  # Trailers.
        return bytes(body)

    async def _to_end(self) -> bytes:
        body = await self._reader.read(ANSWER_BYTES_MAX + 1)
        while more := await self._reader.read(ANSWER_BYTES_MAX + 1):
            body += more
            _check_size(len(body))
        return body

    def close(self) -> None:
        with suppress(RuntimeError):  # The loop is gone already.
            self._writer.close()


def _check_size(size: int) -> None:
    if not 0 <= size <= ANSWER_BYTES_MAX:
        raise ValueError(f"an answer of {size} bytes is too long")


def _failure(body: bytes, status: int) -> _Failure:
    try:
        return msgspec.json.decode(body, type=_Failure)
    except msgspec.DecodeError:
        return _Failure(message=f"HTTP {status}")


def _from_etcd(answer: bytes) -> bytes:
    """An answer, if etcd gave it. Somebody before a member may answer in its place: with a page, or an empty
    object, which would mean that nothing is there, or that a lease was written."""
    with suppress(msgspec.DecodeError):
        if msgspec.json.decode(answer, type=_Answered, strict=False).header.revision > 0:
            return answer
    raise _AttemptError("what answers is not etcd", sure=False)


def _decode(body: bytes, kind: type[_Token]) -> _Token:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise _AttemptError(f"an answer that is not etcd's ({error})", sure=True) from error


def _context(credentials: Credentials) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=credentials.authorities or None)
        if credentials.certificate:
            context.load_cert_chain(credentials.certificate, credentials.key or None)
    except OSError as error:
        raise StoreError(f"the certificates for etcd cannot be read: {error}") from error
    return context
