"""docs/apis.md: the rows of the registry, which is what ApiVersions says."""

from enum import Enum

from penstock.broker.registry import APIS, Api
from penstock.broker.rights import Right

_INTRODUCTION = """\
# APIs and versions

Written by `make reference` from the table in `src/penstock/broker/registry.py`; a test fails while the two differ. A
broker advertises the same table (ApiVersions), so an API that is not here is not advertised.

Versions are those of Apache Kafka's protocol. The oldest ones are kept for old clients, also where Kafka 4 dropped them.
*Needs* is what a user must be allowed where access rules are on, in the words of
[Kafka's ACLs](https://kafka.apache.org/documentation/#security_authz). *Or hides*: items without that right are refused
or left out, each by itself. `make differential` compares the answers of each API and version with Kafka's.

"""


def markdown() -> str:
    rows = "".join(_row(api) for api in APIS.values())
    heading = "| key | API | versions | needs | needs for items, or hides |\n|---|---|---|---|---|\n"
    return f"{_INTRODUCTION}{len(APIS)} APIs are served.\n\n{heading}{rows}"


def _row(api: Api) -> str:
    whole = _words(api.whole) if api.whole else ""
    items = "; ".join(dict.fromkeys(_words(right) for right in api.items))
    return f"| {api.key} | {api.name} | {api.min_version} to {api.max_version} | {whole} | {items} |\n"


def _words(right: Right) -> str:
    words = f"{_name(right.operation)} {_name(right.resource)}"
    if right.or_cluster is not None:
        words += f", or {_name(right.or_cluster)} Cluster"
    if right.or_any is not None:
        words += f", or {_name(right.or_any[0])} any {_name(right.or_any[1])}"
    return words


def _name(word: Enum) -> str:
    """DescribeConfigs for DESCRIBE_CONFIGS, as Kafka's tools write it."""
    return "".join(part.capitalize() for part in word.name.split("_"))
