"""From one request frame to one answer: version check, authorisation, decode, handler, encode.

`make_handle(broker)` gives the function that the server calls. It is synchronous: a handler that must
wait returns an awaitable (or, when raw, a Reply), and only then is a task made for it.

- An API or version without a row closes the connection, as Kafka does: there is no answer that such a
  client could read. ApiVersions is the exception and answers for itself.
- A frame that does not parse closes the connection: the rest of the stream cannot be trusted.
- An exception that nobody expected is logged with its traceback and answered UNKNOWN_SERVER_ERROR: by the
  handler module's own `refused(message, code)` where it has one (each topic and partition that was asked
  for, with that code), else by the code of the response itself. Where the version has neither, the
  connection is closed. It is never a success.
- A handler may return bytes: an answer that it encoded before, for this version, and kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from penstock.broker.acl import CLUSTER_NAME, Resource
from penstock.broker.registry import APIS, Api
from penstock.broker.topics.partitions import LeadershipDoubt, newest_image
from penstock.wire.buffers import Buffer
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.exchange import Reply, Request
from penstock.wire.headers import response_header
from penstock.wire.layout import layout_of

if TYPE_CHECKING:
    from penstock.broker.context import Broker

log = logging.getLogger(__name__)

Answer = list[Buffer] | Reply | None
Handle = Callable[[Request], Answer]


def make_handle(broker: Broker) -> Handle:
    """The function that answers every request of this broker."""
    routes: dict[int, Handle] = {}

    def handle(request: Request) -> Answer:
        route = routes.get(request.api_key)
        if route is None:
            row = APIS.get(request.api_key)
            if row is None:
                return _closed(request, "unknown api")
            route = routes[request.api_key] = _route(broker, row)
        return route(request)

    return handle


def _route(broker: Broker, row: Api) -> Handle:
    return _raw_route(broker, row) if row.raw else _message_route(broker, row)


def _raw_route(broker: Broker, row: Api) -> Handle:
    function = row.handler()
    low, high = row.min_version, row.max_version
    answers_any_version = row.name == "ApiVersions"

    def route(request: Request) -> Answer:
        if not low <= request.api_version <= high and not answers_any_version:
            return _closed(request, "unsupported version")
        try:
            answer: Answer = function(broker, request)
            return answer
        except WireError as error:
            return _closed(request, str(error))
        except Exception:
            log.exception("handler failed api=%s version=%d", row.name, request.api_version)
            return _refused_raw(row, request) or _closed(request, "handler failed")

    return route


def _refused_raw(row: Api, request: Request) -> list[Buffer] | None:
    """UNKNOWN_SERVER_ERROR for all that a raw request asked for, if its answer can say so."""
    refuse = row.refusal()
    if refuse is None:
        return None
    request_class, _response_class = row.messages()
    version = request.api_version
    message, _end = decode(request_class, version, request.frame, request.body_at)
    response = refuse(message, ErrorCode.UNKNOWN_SERVER_ERROR)
    if response is None:
        return None
    return [response_header(row.key, version, request.correlation_id), encode(response, version)]


def _message_route(broker: Broker, row: Api) -> Handle:
    function = row.handler()
    refuse = row.refusal()
    request_class, response_class = row.messages()
    low, high = row.min_version, row.max_version

    def answer(request: Request, response: Any) -> list[Buffer]:
        version = request.api_version
        body = response if isinstance(response, bytes) else encode(response, version)
        return [response_header(row.key, version, request.correlation_id), body]

    def refused(request: Request, message: Any, code: ErrorCode) -> Any | None:
        if refuse is not None:
            return refuse(message, code)
        return _with_error(response_class, request.api_version, code)

    def failure(request: Request, message: Any) -> Any | None:
        log.exception("handler failed api=%s version=%d", row.name, request.api_version)
        return refused(request, message, ErrorCode.UNKNOWN_SERVER_ERROR)

    async def caught_up(request: Request, message: Any) -> Any:
        await newest_image(broker)
        result = function(broker, request, message)
        return await result if isinstance(result, Awaitable) else result

    def call(request: Request, message: Any) -> Any:
        return caught_up(request, message) if row.newest else function(broker, request, message)

    async def finish(request: Request, message: Any, reply: Reply, waiting: Awaitable[Any]) -> None:
        try:
            reply.complete(answer(request, await waiting))
            return
        except asyncio.CancelledError:
            reply.close()
            raise
        except LeadershipDoubt:
            failed = refused(request, message, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        except Exception:
            failed = failure(request, message)
        if failed is None:
            reply.close()
        else:
            reply.complete(answer(request, failed))

    def route(request: Request) -> Answer:
        version = request.api_version
        if not low <= version <= high:
            return _closed(request, "unsupported version")
        try:
            message, _end = decode(request_class, version, request.frame, request.body_at)
        except WireError as error:
            return _closed(request, str(error))
        if (
            row.resource is Resource.CLUSTER
            and row.operation is not None
            and not broker.authorized(request.session, row.operation, Resource.CLUSTER, CLUSTER_NAME)
        ):
            denied = refused(request, message, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return _closed(request, "not authorised") if denied is None else answer(request, denied)
        try:
            result = call(request, message)
            if not isinstance(result, Awaitable):
                return answer(request, result)
        except Exception:
            failed = failure(request, message)
            return _closed(request, "handler failed") if failed is None else answer(request, failed)
        reply = Reply()
        broker.tasks.spawn(finish(request, message, reply, result))
        return reply

    return route


def _with_error(response_class: type[Any], version: int, code: ErrorCode) -> Any | None:
    """An answer that says only `code`, if the response has a code of its own in this version."""
    if not any(field.name == "error_code" for field in layout_of(response_class, version).plain):
        return None
    return response_class(error_code=code)


def _closed(request: Request, why: str) -> Reply:
    log.info(
        "closed the connection: %s; api_key=%d version=%d peer=%s",
        why,
        request.api_key,
        request.api_version,
        request.session.peer_host,
    )
    reply = Reply()
    reply.close()
    return reply
