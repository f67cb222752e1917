"""DescribeConfigs 0-4: the settings of resources, their values and where these come from (KIP-133, KIP-226).

- Topics: every topic setting of Kafka with the value in force. Brokers: by number, all settings of this
  broker (others are asked for theirs); the empty name, the settings that were changed for all brokers.
  Groups: the settings that a group can have. Loggers of this broker and their levels. Client metrics:
  refused, because none are collected.
- `configuration_keys`, if neither null nor empty, chooses settings; names that do not exist are left out.
- Synonyms (version 1) are what gives the value, the strongest first; documentation and type come with
  version 3. Passwords and the credentials in a URL are not shown.
- Errors are per resource, except for a resource type that does not exist: then the whole request is
  INVALID_REQUEST, as in Kafka. UNKNOWN_TOPIC_OR_PARTITION is said after a look at the newest metadata.
- A resource that is named repeatedly is described repeatedly, from one description; more than 50,000
  resources in one request are INVALID_REQUEST, because a small request could ask for a huge answer.
- Version 0 has a field that says whether a value is the default; like Kafka's, it is always false.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.broker.configs import loggers
from penstock.broker.configs.changes import broker_number
from penstock.broker.configs.rights import ConfigRights, unauthorized
from penstock.broker.rights import (
    DESCRIBE_CLUSTER_CONFIGS,
    DESCRIBE_GROUP_CONFIGS,
    DESCRIBE_TOPIC_CONFIGS,
)
from penstock.metadata.config_entries import (
    ConfigEntry,
    describe_all_brokers,
    describe_broker,
    describe_group,
    describe_topic,
)
from penstock.metadata.image import (
    BROKER_CONFIG,
    BROKER_LOGGER_CONFIG,
    CLIENT_METRICS_CONFIG,
    GROUP_CONFIG,
    TOPIC_CONFIG,
)
from penstock.metadata.names import topic_name_problem
from penstock.metadata.refusal import Refusal
from penstock.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

RESOURCES_MAX = 50_000
DYNAMIC_LOGGER = 6
"""The source of log levels, as DescribeConfigs numbers it."""

_TYPES = {TOPIC_CONFIG, BROKER_CONFIG, BROKER_LOGGER_CONFIG, CLIENT_METRICS_CONFIG, GROUP_CONFIG}
_RIGHTS = ConfigRights(DESCRIBE_TOPIC_CONFIGS, DESCRIBE_GROUP_CONFIGS, DESCRIBE_CLUSTER_CONFIGS)
_MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the message was "
    "sent to an incompatible broker. See the broker logs for more details."
)

Results = list[DescribeConfigsResourceResult]


def handle(
    broker: Broker, request: Request, message: DescribeConfigsRequest, permit: Permit
) -> DescribeConfigsResponse:
    resources = message.resources
    if len(resources) > RESOURCES_MAX or any(one.resource_type not in _TYPES for one in resources):
        return refused(message, ErrorCode.INVALID_REQUEST)
    image = broker.image
    results = []
    known: dict[tuple[int, str, tuple[str, ...]], Results | Refusal] = {}
    for resource in resources:
        key = (resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ()))
        if key not in known:
            known[key] = _describe(broker, image, permit, resource, message)
        described = known[key]
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        if isinstance(described, Refusal):
            result.error_code, result.error_message = described.code, described.message
        else:
            result.configs = described
        results.append(result)
    return DescribeConfigsResponse(results=results)


def refused(message: DescribeConfigsRequest, code: ErrorCode) -> DescribeConfigsResponse:
    text = _MALFORMED if code is ErrorCode.INVALID_REQUEST else None
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResult(
                error_code=code,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in message.resources
        ]
    )


def _describe(
    broker: Broker,
    image: ClusterImage,
    permit: Permit,
    resource: DescribeConfigsResource,
    message: DescribeConfigsRequest,
) -> Results | Refusal:
    kind, name = resource.resource_type, resource.resource_name
    names = resource.configuration_keys or None
    refusal = unauthorized(permit, _RIGHTS, kind, name)
    if refusal is not None:
        return refusal
    given, broker_id = broker.settings.given, broker.broker_id
    if kind == TOPIC_CONFIG:
        refusal = _topic_refusal(image, name)
        return refusal or _shown(describe_topic(image, name, broker_id, given, names), message)
    if kind == GROUP_CONFIG:
        if not name:
            return Refusal(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return _shown(describe_group(image, name, broker_id, given, names), message)
    if kind == CLIENT_METRICS_CONFIG:
        if not name:
            return Refusal(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return Refusal(ErrorCode.INVALID_REQUEST, "Client metrics are not collected by this cluster.")
    if kind == BROKER_LOGGER_CONFIG:
        refusal = _number_refusal(name, broker_id, f"expected {broker_id} but", may_be_empty=False)
        return refusal or _loggers(names)
    refusal = _number_refusal(
        name, broker_id, f"expected {broker_id} or empty string, but", may_be_empty=True
    )
    if refusal is None and not name:
        return _shown(describe_all_brokers(image, names), message)
    return refusal or _shown(describe_broker(image, broker_id, given, names), message)


def _topic_refusal(image: ClusterImage, name: str) -> Refusal | None:
    problem = topic_name_problem(name)
    if problem is not None:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name not in image.topics:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
    return None


def _number_refusal(name: str, broker_id: int, expected: str, *, may_be_empty: bool) -> Refusal | None:
    if not name:
        return None if may_be_empty else Refusal(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    number = broker_number(name)
    if number is None:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if number != broker_id:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, {expected} received {name}")
    return None


def _loggers(names: Iterable[str] | None) -> Results:
    chosen = None if names is None else set(names)
    return [
        DescribeConfigsResourceResult(name=name, value=level, config_source=DYNAMIC_LOGGER)
        for name, level in loggers.levels().items()
        if chosen is None or name in chosen
    ]


def _shown(entries: Iterable[ConfigEntry], message: DescribeConfigsRequest) -> Results:
    results = []
    for entry in entries:
        synonyms = entry.synonyms if message.include_synonyms else ()
        results.append(
            DescribeConfigsResourceResult(
                name=entry.name,
                value=_value(entry, entry.value),
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
                synonyms=[
                    DescribeConfigsSynonym(
                        name=synonym.name, value=_value(entry, synonym.value), source=synonym.source
                    )
                    for synonym in synonyms
                ],
                config_type=entry.kind,
                documentation=entry.doc if message.include_documentation else None,
            )
        )
    return results


def _value(entry: ConfigEntry, value: str | None) -> str | None:
    if value is not None and entry.name == "store" and "://" not in value:
        # Whoever asks (Spark does, to read the log itself) runs in another directory.
        return os.path.abspath(value)
    return value
