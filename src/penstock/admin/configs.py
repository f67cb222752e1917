"""Settings of topics and brokers, and where each has its value from."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client import AnswerError, Client
from penstock.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

SOURCES = {
    1: "set for this topic",
    2: "set for this broker",
    3: "set for all brokers",
    4: "from the broker's file or command line",
    5: "default",
    8: "set for this group",
}
DOCUMENTED = 3
"""The first version that says what settings mean."""
OWN = (1, 2, 8)
"""Set for the resource itself: such a value can be taken back."""
TOPIC, BROKER = 2, 4
"""Kinds of resources that have settings."""


class Config(NamedTuple):
    name: str
    value: str | None
    source: str
    own: bool
    """Set for this resource, so that it can be taken back."""
    read_only: bool
    sensitive: bool
    documentation: str


def describe_configs(client: Client, kind: int, name: str) -> list[Config]:
    """The settings of one resource, in the order of their names. A broker knows its own alone."""
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    connection = client.broker(int(name)) if kind == BROKER else client.any()
    request = DescribeConfigsRequest(resources=[resource])
    request.include_documentation = connection.version_of(request) >= DOCUMENTED
    (result,) = connection.ask(request, DescribeConfigsResponse).results
    if result.error_code:
        raise AnswerError(result.error_code, f"The question for settings of {name!r}", result.error_message)
    found = [
        Config(
            one.name,
            one.value,
            SOURCES.get(one.config_source, "default" if one.is_default else "set"),
            one.config_source in OWN,
            one.read_only,
            one.is_sensitive,
            one.documentation or "",
        )
        for one in result.configs
    ]
    return sorted(found)
