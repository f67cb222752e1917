"""DeleteTopics 0-6: by name, and from version 6 by name or id (KIP-516).

- A deleted topic is gone from the metadata when the answer is sent; its objects are reclaimed in the
  background. A topic made later under the same name has another id.
- Each topic is named once: a repeated name or id is INVALID_REQUEST, answered once, and so is an entry with
  both a name and an id, or neither, and a name whose topic is also given by id.
- UNKNOWN_TOPIC_OR_PARTITION for names, UNKNOWN_TOPIC_ID for ids; messages from version 5.
- With `delete.topic.enable` off: TOPIC_DELETION_DISABLED, below version 3 INVALID_REQUEST.
- A timeout that is not positive is REQUEST_TIMED_OUT and nothing is done, as in Kafka.
- All topics of a request are deleted by one entry of the metadata log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.rights import DELETE_TOPIC, SEE_DELETED_TOPIC
from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.metadata.commands import DeleteTopic
from penstock.metadata.refusal import Refusal
from penstock.wire.api.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.broker.security.quotas import MutationQuota
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

UNKNOWN_TOPIC = "This server does not host this topic-partition."
UNKNOWN_ID = "This server does not host this topic ID."
OVER_QUOTA = "The throttling quota has been exceeded."
UNAUTHORIZED = "Topic authorization failed."


async def handle(
    broker: Broker, request: Request, message: DeleteTopicsRequest, permit: Permit
) -> DeleteTopicsResponse:
    if not broker.settings.delete_topic_enable:
        old = request.api_version < 3
        return refused(message, ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED)
    if message.timeout_ms <= 0:
        return refused(message, ErrorCode.REQUEST_TIMED_OUT)
    quota = None if broker.quotas is None else broker.quotas.mutations(request)
    deletion = _Deletion(message, permit, quota)
    try:
        outcome = await broker.metadata.propose(deletion.decide)
    except MetadataUnavailableError:
        return refused(message, ErrorCode.REQUEST_TIMED_OUT)
    answer = deletion.answer(outcome if isinstance(outcome, Refusal) else None)
    answer.throttle_time_ms = 0 if quota is None else quota.throttle(request.session)
    return answer


def refused(message: DeleteTopicsRequest, code: ErrorCode) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=code)
            for state in _states(message)
        ]
    )


def _states(message: DeleteTopicsRequest) -> list[DeleteTopicState]:
    return [*(DeleteTopicState(name=name) for name in message.topic_names), *message.topics]


class _Deletion:
    """One request: its topics, and the decision against the last image that was tried."""

    def __init__(self, message: DeleteTopicsRequest, permit: Permit, quota: MutationQuota | None) -> None:
        self._permit = permit
        self._quota = quota
        self._faults: list[DeletableTopicResult] = []
        names: dict[str, int] = {}
        ids: dict[bytes, int] = {}
        for state in _states(message):
            if state.name is None and state.topic_id == ZERO_UUID:
                self._fault(None, ZERO_UUID, "Neither topic name nor id were specified.")
            elif state.name is None:
                ids[state.topic_id] = ids.get(state.topic_id, 0) + 1
            elif state.topic_id == ZERO_UUID:
                names[state.name] = names.get(state.name, 0) + 1
            else:
                self._fault(state.name, state.topic_id, "You may not specify both topic name and topic id.")
        for name, count in names.items():
            if count > 1:
                self._fault(name, ZERO_UUID, "Duplicate topic name.")
        for topic_id, count in ids.items():
            if count > 1:
                self._fault(None, topic_id, "Duplicate topic id.")
        self._names = [name for name, count in names.items() if count == 1]
        self._ids = [topic_id for topic_id, count in ids.items() if count == 1]
        self._repeated_ids = {topic_id for topic_id, count in ids.items() if count > 1}
        self._results: list[DeletableTopicResult] = []
        self._doomed: dict[bytes, str] = {}

    def _fault(self, name: str | None, topic_id: bytes, message: str) -> None:
        self._faults.append(_result(name, topic_id, ErrorCode.INVALID_REQUEST, message))

    def decide(self, image: ClusterImage) -> list[DeleteTopic]:
        """Run again when the image changed: everything decided before is forgotten."""
        self._results, self._doomed = [], {}
        for topic_id in self._ids:
            self._by_id(image, topic_id)
        taken = self._repeated_ids.copy()
        for name in self._names:
            self._by_name(image, name, taken)
        for topic_id, name in list(self._doomed.items()):
            if self._quota is not None and not self._quota.take(name, len(image.topics[name].partitions)):
                del self._doomed[topic_id]
                code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
                self._results.append(_result(name, topic_id, code, OVER_QUOTA))
        return [DeleteTopic(topic_id=topic_id) for topic_id in self._doomed]

    def _by_id(self, image: ClusterImage, topic_id: bytes) -> None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            self._results.append(_result(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID, UNKNOWN_ID))
        elif self._permit.allows(DELETE_TOPIC, topic.name):
            self._doomed[topic_id] = topic.name
        else:
            shown = topic.name if self._permit.sees(SEE_DELETED_TOPIC, topic.name) else None
            self._results.append(_result(shown, topic_id, DELETE_TOPIC.code, UNAUTHORIZED))

    def _by_name(self, image: ClusterImage, name: str, taken: set[bytes]) -> None:
        topic = image.topics.get(name)
        if topic is None and self._permit.allows(SEE_DELETED_TOPIC, name):
            self._results.append(
                _result(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC)
            )
        elif topic is None or not self._permit.allows(DELETE_TOPIC, name):
            self._results.append(_result(name, ZERO_UUID, DELETE_TOPIC.code, UNAUTHORIZED))
        elif topic.id in taken or topic.id in self._doomed:
            # Given by name and by id: neither is carried out, and the name says why.
            self._doomed.pop(topic.id, None)
            taken.add(topic.id)
            self._results.append(
                _result(
                    name,
                    topic.id,
                    ErrorCode.INVALID_REQUEST,
                    "The provided topic name maps to an ID that was already supplied.",
                )
            )
        else:
            self._doomed[topic.id] = name

    def answer(self, refusal: Refusal | None) -> DeleteTopicsResponse:
        code = ErrorCode.NONE if refusal is None else refusal.code
        text = None if refusal is None else refusal.message
        done = [_result(name, topic_id, code, text) for topic_id, name in self._doomed.items()]
        return DeleteTopicsResponse(responses=[*done, *self._results, *self._faults])


def _result(name: str | None, topic_id: bytes, code: ErrorCode, message: str | None) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)
