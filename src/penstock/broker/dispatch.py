"""From one request frame to one answer: version check, authorisation, decode, handler, encode.

`make_handle(broker)` gives the function that the server calls. It is synchronous: a handler that must
wait returns an awaitable (or, when raw, a Reply), and only then is a task made for it.

- An API or version without a row closes the connection, as Kafka does: there is no answer that such a
  client could read. ApiVersions is the exception and answers for itself.
- A frame that does not parse closes the connection: the rest of the stream cannot be trusted.
- An exception that nobody expected is logged with its traceback and answered UNKNOWN_SERVER_ERROR where
  the response has a code of its own; otherwise the connection is closed. It is never a success.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from penstock.broker.acl import CLUSTER_NAME, Resource
from penstock.broker.registry import APIS, Api
from penstock.wire.buffers import Buffer
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.exchange import Reply, Request
from penstock.wire.headers import response_header

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
            return _closed(request, "handler failed")

    return route


def _message_route(broker: Broker, row: Api) -> Handle:
    function = row.handler()
    request_class, response_class = row.messages()
    low, high = row.min_version, row.max_version

    def answer(request: Request, response: Any) -> list[Buffer]:
        version = request.api_version
        return [response_header(row.key, version, request.correlation_id), encode(response, version)]

    async def finish(request: Request, reply: Reply, waiting: Awaitable[Any]) -> None:
        try:
            reply.complete(answer(request, await waiting))
        except asyncio.CancelledError:
            reply.close()
            raise
        except Exception:
            failure = _failure(request, row, response_class)
            if failure is None:
                reply.close()
            else:
                reply.complete(answer(request, failure))

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
            refused = _with_error(response_class, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return _closed(request, "not authorised") if refused is None else answer(request, refused)
        try:
            result = function(broker, request, message)
            if not isinstance(result, Awaitable):
                return answer(request, result)
        except Exception:
            failure = _failure(request, row, response_class)
            return _closed(request, "handler failed") if failure is None else answer(request, failure)
        reply = Reply()
        broker.spawn(finish(request, reply, result))
        return reply

    return route


def _failure(request: Request, row: Api, response_class: type[Any]) -> Any | None:
    log.exception("handler failed api=%s version=%d", row.name, request.api_version)
    return _with_error(response_class, ErrorCode.UNKNOWN_SERVER_ERROR)


def _with_error(response_class: type[Any], code: ErrorCode) -> Any | None:
    """An answer that says only `code`, if the response has a code of its own."""
    if "error_code" not in response_class.__struct_fields__:
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
