"""From one request frame to one answer: version, decode, rights, freshness, handler, encode.

`make_handle(broker)` gives the function that the server calls. It is synchronous: a handler that must wait
returns an awaitable or a Reply, and only for the first a task is made.

- An API or version without a row closes the connection, as Kafka does: there is no answer that such a client
  could read. ApiVersions is the exception and answers for itself.
- A frame that does not parse closes the connection: the rest of the stream cannot be trusted.
- A caller that lacks the right to the whole request is refused before anything is looked at. The handler asks
  its permit for rights to items.
- If the image is not as fresh as the row says, the handler runs after the broker has caught up.
- An unexpected exception is logged with its traceback and answered UNKNOWN_SERVER_ERROR: by the handler
  module's own `refused(message, code)` if it has one (each topic and partition that was asked for, with that
  code), else by the code of the response itself. If the version has neither, the connection is closed. It is
  never a success.
- A handler may return bytes: an answer that it encoded before, for this version, and kept.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from penstock.audit import Asked
from penstock.broker.acl import CLUSTER_NAME, Resource
from penstock.broker.freshness import Fresh, LeadershipDoubt, Named, freshen, is_fresh
from penstock.broker.metering import metered
from penstock.broker.observing import Answer, Handle, Hook, observed
from penstock.broker.registry import APIS, Api
from penstock.broker.rights import EVERYTHING, Permit, Right
from penstock.wire.buffers import Buffer
from penstock.wire.codec import decode, encode
from penstock.wire.encoding import AnswerTooLargeError
from penstock.wire.errors import ErrorCode, WireError
from penstock.wire.exchange import LightRelay, Relay, Reply, Request
from penstock.wire.headers import response_header
from penstock.wire.layout import layout_of

if TYPE_CHECKING:
    from penstock.broker.context import Broker

log = logging.getLogger(__name__)


class RightGone(Exception):
    """The right to a whole request was taken away while it waited for the newest image."""

    def __init__(self, code: ErrorCode) -> None:
        self.code = code


def make_handle(broker: Broker, hook: Hook | None = None) -> Handle:
    """The function that answers every request of this broker. `hook` is told of each of them."""
    routes: dict[int, Handle] = {}

    def handle(request: Request) -> Answer:
        route = routes.get(request.api_key)
        if route is None:
            row = APIS.get(request.api_key)
            if row is None:
                return _closed(request, "unknown api")
            route = routes[request.api_key] = _route(broker, row)
        # A connection that has a fast way comes by here as soon as there is another image, and so when quotas
        # appear or go.
        quotas = broker.quotas
        return route(request) if quotas is None else quotas.measured(route, request)

    seen = handle if hook is None else observed(handle, hook, broker.clock, broker.meters)
    return metered(seen, broker.meters) if broker.meters.timed else seen


def _route(broker: Broker, row: Api) -> Handle:
    return _raw_route(broker, row) if row.raw else _Messages(broker, row).route


def _raw_route(broker: Broker, row: Api) -> Handle:
    function = row.handler()

    def route(request: Request) -> Answer:
        try:
            answer: Answer = function(broker, request)
            return answer
        except WireError as error:
            return _closed(request, str(error))
        except Exception:
            _log_failure(row, request)
            return _closed(request, "handler failed")

    return route


class _Messages:
    """The way of the requests of one API whose messages are decoded here. Written with few calls: Fetch and
    the general way of Produce come by."""

    __slots__ = (
        "_broker", "_function", "_looks", "_names", "_of_topics", "_opened", "_refuse", "_request_class",
        "_response_class", "_row", "_surely", "_takes_permit", "_versions",
    )  # fmt: skip

    def __init__(self, broker: Broker, row: Api) -> None:
        self._broker = broker
        self._row = row
        self._function = row.handler()
        self._refuse = row.part("refused")
        self._names = row.part("named") if Fresh.KNOWN in row.fresh else None
        self._request_class, self._response_class = row.messages()
        self._versions = range(row.min_version, row.max_version + 1)
        self._takes_permit = bool(row.items)
        self._of_topics = tuple(right for right in row.items if right.resource is Resource.TOPIC)
        self._looks = row.fresh is not Fresh.AT_HAND
        self._opened = Fresh.OPEN in row.fresh
        self._surely = bool(row.fresh & (Fresh.SURE | Fresh.LED))

    def route(self, request: Request) -> Answer:
        broker = self._broker
        version = request.api_version
        if version not in self._versions:
            return _closed(request, "unsupported version")
        try:
            message, _end = decode(self._request_class, version, request.frame, request.body_at)
        except WireError as error:
            return _closed(request, str(error))
        permit = EVERYTHING
        if broker.rules is not None:
            session = request.session
            asked = Asked(self._row.name, request.correlation_id, request.client_id)
            permit = Permit(broker.rules, session.principal, session.peer_host, True, broker.audit, asked)
            whole = self._row.whole
            if whole is not None and not permit.allows(whole, _name_of(whole, message)):
                refusal = self._refusal(request, message, whole.code)
                return _closed(request, "not authorised") if refusal is None else refusal
        try:
            if self._looks and not is_fresh(
                broker, self._named(message, version, permit), self._opened, self._surely
            ):
                request.keep_frame()
                message, _end = decode(self._request_class, version, request.frame, request.body_at)
                result = self._freshened(request, message, permit)
            else:
                if self._takes_permit:
                    result = self._function(broker, request, message, permit)
                else:
                    result = self._function(broker, request, message)
                if isinstance(result, Reply):
                    return result
                if not isinstance(result, Awaitable):
                    return self._answer(request, result)
        except Exception:
            failed = self._failure(request, message)
            return _closed(request, "handler failed") if failed is None else failed
        if self._row.parks:
            request.let_go()
        relay = LightRelay() if self._row.parks else Relay()
        broker.tasks.spawn(self._finish(request, message, relay, result))
        return relay

    # -- what must wait -------------------------------------------------------------------------------

    def _named(self, message: Any, version: int, permit: Permit) -> Named | None:
        """The topics that the message names and its sender has a right to. Nobody looks for others: how long
        an answer takes must not tell whether a hidden topic exists."""
        if self._names is None:
            return None
        named: Named | None = self._names(self._broker, message, version)
        rights = self._of_topics
        if named is None or permit.rules is None or not rights:
            return named
        return [
            (topic, index)
            for topic, index in named
            if isinstance(topic, bytes) or any(permit.sees(right, topic) for right in rights)
        ]

    async def _freshened(self, request: Request, message: Any, permit: Permit) -> Any:
        """Call the handler when the image is as its row says."""
        fresh = self._row.fresh
        broker = self._broker
        sure = await freshen(broker, fresh, lambda: self._named(message, request.api_version, permit))
        permit = permit.of_now(broker.rules)
        whole = self._row.whole
        if whole is not None and not permit.allows(whole, _name_of(whole, message)):
            raise RightGone(whole.code)
        if self._takes_permit:
            if not sure and Fresh.SURE in fresh:
                permit = permit._replace(leads=False)
            result = self._function(broker, request, message, permit)
        else:
            result = self._function(broker, request, message)
        return await result if isinstance(result, Awaitable) else result

    async def _finish(self, request: Request, message: Any, relay: Relay, waiting: Awaitable[Any]) -> None:
        try:
            result = await waiting
            if isinstance(result, Reply):
                relay.become(result)
            else:
                relay.complete(self._answer(request, result))
            return
        except asyncio.CancelledError:
            relay.close()
            raise
        except LeadershipDoubt:
            failed = self._refusal(request, message, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        except RightGone as gone:
            failed = self._refusal(request, message, gone.code)
        except Exception:
            failed = self._failure(request, message)
        if failed is None:
            relay.close()
        else:
            relay.complete(failed)

    # -- answers --------------------------------------------------------------------------------------

    def _answer(self, request: Request, response: Any) -> list[Buffer]:
        version = request.api_version
        if isinstance(response, bytes):
            body = response
        else:
            body = encode(response, version)
            if self._broker.meters.timed:
                self._broker.meters.count_items(response)
        return [response_header(self._row.key, version, request.correlation_id), body]

    def _refusal(self, request: Request, message: Any, code: ErrorCode) -> list[Buffer] | None:
        """All that was asked for, refused with one code, if the answer can say so."""
        if self._refuse is not None:
            response = self._refuse(message, code)
        else:
            response = _with_error(self._response_class, request.api_version, code)
        if response is None:
            return None
        if getattr(response, "error_code", 0) and not _has_code(self._response_class, request.api_version):
            response.error_code = ErrorCode.NONE  # Its items say it in this version.
        return self._answer(request, response)

    def _failure(self, request: Request, message: Any) -> list[Buffer] | None:
        if isinstance(sys.exception(), AnswerTooLargeError):
            # It may name the same thing many times, or more than clients can take.
            log.warning("an answer was too large api=%s client=%r", self._row.name, _client_of(request))
            return self._refusal(request, message, ErrorCode.INVALID_REQUEST)
        _log_failure(self._row, request)
        return self._refusal(request, message, ErrorCode.UNKNOWN_SERVER_ERROR)


def _name_of(right: Right, message: Any) -> str:
    """The resource that a right to the whole request is on."""
    if right.resource is Resource.CLUSTER:
        return CLUSTER_NAME
    name: str = message.group_id
    return name


def _with_error(response_class: type[Any], version: int, code: ErrorCode) -> Any | None:
    """An answer that says only `code`, if the response has a code of its own in this version."""
    if not _has_code(response_class, version):
        return None
    response = response_class(error_code=code)
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED and hasattr(response, "error_message"):
        response.error_message = code.name
    return response


def _has_code(response_class: type[Any], version: int) -> bool:
    """Does the response have a code of its own in this version?"""
    return any(field.name == "error_code" for field in layout_of(response_class, version).plain)


def _log_failure(row: Api, request: Request) -> None:
    """With what the client's own log has of it, too. A client's name is its own choice, so it is quoted."""
    log.exception(
        "handler failed api=%s version=%d correlation=%d client=%r peer=%s",
        row.name,
        request.api_version,
        request.correlation_id,
        _client_of(request),
        request.session.peer_host,
    )


def _closed(request: Request, why: str) -> Reply:
    log.info(
        "closed the connection: %s; api_key=%d version=%d correlation=%d client=%r peer=%s",
        why,
        request.api_key,
        request.api_version,
        request.correlation_id,
        _client_of(request),
        request.session.peer_host,
    )
    reply = Reply()
    reply.close()
    return reply


def _client_of(request: Request) -> str | None:
    """None also if that is what cannot be read of the request."""
    try:
        return request.client_id
    except WireError:
        return None
