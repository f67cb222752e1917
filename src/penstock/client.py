"""A small blocking client, for the command line and for Spark. It speaks to any Kafka-compatible cluster.

It keeps one connection per broker, speaks the newest version that both sides know, and finds leaders
through Metadata. It retries what the protocol calls retriable, for a bounded time, and otherwise says in
one sentence what went wrong (`ClientError`).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.settings.clients import OPEN_CLIENT, ClientSecurity
from penstock.wire.api.api_versions import ApiVersionsResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.asking import GREETINGS, SIZE_BYTES, Question, Versions, size_of_answer, sized
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.schema import ApiMessage

if TYPE_CHECKING:
    from penstock.settings.doors import TlsSettings

R = TypeVar("R", bound=ApiMessage)
T = TypeVar("T")

CLIENT_ID = "penstock"
RETRY_PAUSE_SECONDS = 0.1


class ClientError(Exception):
    """Something went wrong. The message is one sentence for a person."""


class ClientRefusedError(ClientError):
    """A broker did not let us in. Asking again would not help."""


class AnswerError(ClientError):
    """A broker answered with an error code."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = error_code(code)
        detail = f": {message.removesuffix('.')}" if message else ""
        super().__init__(f"{what} was answered {self.code.name}{detail}.")


def error_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class Connection:
    """One broker, and the versions it speaks."""

    def __init__(self, host: str, port: int, seconds: float, security: ClientSecurity = OPEN_CLIENT) -> None:
        self.address = f"{host}:{port}"
        self._security = security
        self._login_again_at: float | None = None
        try:
            self._socket = socket.create_connection((host, port), seconds)
        except OSError as error:
            raise ClientError(f"No broker answers at {self.address} ({error.strerror or error}).") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        try:
            if security.tls is not None:
                self._speak_tls(host, security.tls, min(10.0, seconds))
            self._versions = self._learn_versions(min(10.0, seconds))
            if security.mechanism is not None:
                self._log_in(min(30.0, seconds))
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def knows(self, api_key: int) -> bool:
        return api_key in self._versions

    def version_of(self, request: ApiMessage, newest: int | None = None) -> int:
        version = self._versions.newest(request, newest)
        if version is None:
            raise ClientError(f"The broker at {self.address} does not serve {type(request).__name__}.")
        return version

    def ask(
        self, request: ApiMessage, response: type[R], *, seconds: float = 30.0, newest: int | None = None
    ) -> R:
        """Send a request and wait for its answer."""
        if self._login_again_at is not None and time.monotonic() > self._login_again_at:
            self._log_in(seconds)
        return self._exchange(request, response, self.version_of(request, newest), seconds)

    def _speak_tls(self, host: str, tls: TlsSettings, seconds: float) -> None:
        import ssl

        from penstock.tls import TlsError, client_context

        try:
            context = client_context(tls)
            self._socket.settimeout(seconds)
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except TlsError as error:
            raise ClientError(str(error)) from None
        except ssl.SSLCertVerificationError as error:
            raise ClientError(
                f"The certificate of {self.address} is not trusted: {error.verify_message}."
            ) from error
        except OSError as error:
            raise ClientError(
                f"{self.address} does not speak TLS with us ({getattr(error, 'reason', None) or error})."
            ) from error

    def _log_in(self, seconds: float) -> None:
        from penstock.logging_in import LoginError, login_steps, new_nonce

        self._login_again_at = None
        steps = login_steps(self._security, new_nonce())
        try:
            request, response = next(steps)
            while True:
                answer = self._exchange(request, response, self.version_of(request), seconds)
                request, response = steps.send(answer)
        except StopIteration as done:
            if done.value:
                # Well before its end, as other clients do.
                self._login_again_at = time.monotonic() + 0.85 * done.value / 1000
        except LoginError as error:
            raise ClientRefusedError(f"{str(error).rstrip('.')} ({self.address}).") from None

    def _learn_versions(self, seconds: float) -> Versions:
        for greeting, version in GREETINGS:
            answer = self._exchange(greeting, ApiVersionsResponse, version, seconds)
            if answer.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
        if answer.error_code:
            raise AnswerError(answer.error_code, f"The greeting to {self.address}")
        return Versions(answer)

    def _exchange(self, request: ApiMessage, response: type[R], version: int, seconds: float) -> R:
        self._correlation_id += 1
        try:
            question = Question(request, response, version, self._correlation_id, CLIENT_ID)
        except ValueError as error:
            # A number that does not fit its field, or something that this version of the request lacks.
            raise ClientError(f"The broker at {self.address} cannot be asked this: {error}.") from None
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(sized(question.frame))
            size = size_of_answer(self._receive(SIZE_BYTES))
            frame = memoryview(self._receive(size))
        except TimeoutError as error:
            raise ClientError(f"The broker at {self.address} did not answer in {seconds:.0f} s.") from error
        except OSError as error:
            hint = ""
            if isinstance(error, ConnectionResetError) and self._security is OPEN_CLIENT:
                hint = " If that listener wants TLS or a login, --command-config FILE says how."
            elif isinstance(error, ConnectionResetError) and self._security.tls is None:
                hint = " If that listener wants TLS, security.protocol is SASL_SSL."
            raise ClientError(
                f"The connection to {self.address} broke ({error.strerror or error}).{hint}"
            ) from error
        except WireError as error:
            raise ClientError(f"What answers at {self.address} does not speak the Kafka protocol.") from error
        try:
            return question.read(frame)
        except WireError as error:
            raise ClientError(f"The answer of {self.address} cannot be read: {error}.") from error

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise ConnectionResetError(None, "the broker closed it")
            view = view[count:]
        return data


class Client:
    """A cluster, reached through any of its brokers."""

    def __init__(self, bootstrap: str, seconds: float = 30.0, security: ClientSecurity = OPEN_CLIENT) -> None:
        self._seconds = seconds
        self._security = security
        self._bootstrap = addresses(bootstrap)
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        self._ids: dict[str, bytes] = {}
        self.any()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- brokers ------------------------------------------------------------------------------------

    def any(self) -> Connection:
        """A connection to whichever broker answers."""
        for connection in self._connections.values():
            return connection
        failure: ClientError | None = None
        for address in [*self._bootstrap, *self._brokers.values()]:
            try:
                return self._connect(address)
            except ClientError as error:
                failure = error
        assert failure is not None
        raise failure

    def broker(self, node_id: int) -> Connection:
        address = self._brokers.get(node_id)
        if address is None:
            raise ClientError(f"Broker {node_id} is not in the cluster's list of brokers.")
        return self._connect(address)

    def controller(self) -> Connection:
        return self.broker(self.metadata([]).controller_id)

    def _connect(self, address: tuple[str, int]) -> Connection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(*address, self._seconds, self._security)
        return connection

    def _forget_connections(self) -> None:
        self.close()
        self._leaders.clear()

    # -- metadata -----------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None = None, *, create: bool = False) -> MetadataResponse:
        """The cluster and these topics (None: all of them)."""
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)
        answer = self.any().ask(request, MetadataResponse)
        self.learn(answer)
        return answer

    def learn(self, answer: MetadataResponse) -> None:
        """Know brokers and leaders from an answer, whoever asked."""
        self._brokers = {one.node_id: (one.host, one.port) for one in answer.brokers}
        for topic in answer.topics:
            if topic.name is not None:
                self._ids[topic.name] = topic.topic_id
                for partition in topic.partitions:
                    self._leaders[topic.name, partition.partition_index] = partition.leader_id

    def partitions(self, topic: str, *, create: bool = False) -> list[int]:
        """The partitions of a topic, which must exist or may be created."""

        def look() -> list[int] | None:
            (found,) = self.metadata([topic], create=create).topics
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not create:
                return None  # nobody is about to create it: asking again would only waste time
            if found.error_code:
                raise AnswerError(found.error_code, f"The question for topic {topic!r}")
            return sorted(one.partition_index for one in found.partitions)

        partitions = self.retry(look)
        if partitions is None:
            raise AnswerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The question for topic {topic!r}", "there is none"
            )
        return partitions

    def topic_id(self, topic: str) -> bytes:
        return self._ids[topic]

    def leader(self, topic: str, partition: int) -> Connection:
        return self.broker(self.leader_id(topic, partition))

    def leader_id(self, topic: str, partition: int) -> int:
        """The broker that leads a partition, as last heard of; asked for if nothing was heard."""
        leader = self._leaders.get((topic, partition), -1)
        if leader < 0:
            self.partitions(topic)
            leader = self._leaders.get((topic, partition), -1)
        if leader < 0:
            raise AnswerError(ErrorCode.LEADER_NOT_AVAILABLE, f"The question for the leader of {topic!r}")
        return leader

    def refresh(self) -> None:
        """Forget who leads what, and connections that may be broken."""
        self._forget_connections()
        with contextlib.suppress(ClientError):
            self.metadata([])

    # -- trying again -------------------------------------------------------------------------------

    def retry(self, attempt: Callable[[], T]) -> T:
        """Try again while the answer is an error that passes, or the connection broke."""
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                return attempt()
            except AnswerError as error:
                if not error.code.retriable or time.monotonic() > deadline:
                    raise
                self._leaders.clear()
            except ClientRefusedError:
                raise
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                self.refresh()
            time.sleep(RETRY_PAUSE_SECONDS)


def messages(name: str) -> Sequence[Any]:
    """The request and response classes of an API, by its snake name."""
    module = import_module(f"penstock.wire.api.{name}")
    camel = "".join(part.capitalize() for part in name.split("_"))
    return getattr(module, f"{camel}Request"), getattr(module, f"{camel}Response")


def addresses(bootstrap: str) -> list[tuple[str, int]]:
    """The addresses in HOST:PORT,HOST:PORT,..."""
    return [_address(part) for part in bootstrap.split(",")]


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ClientError(
            f"A bootstrap address is HOST:PORT, with a port of 1 to 65535, not {text.strip()!r}."
        )
    return host.removeprefix("[").removesuffix("]"), int(port)
