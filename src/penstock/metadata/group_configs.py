"""The settings of single consumer groups (KIP-848), which override those of the brokers."""

from collections.abc import Callable, Mapping

import msgspec

from penstock.metadata.definitions import Definition, Kind, at_least
from penstock.metadata.image import GROUP_CONFIG, ClusterImage


def _group(name: str, default: str, doc: str, minimum: int) -> Definition:
    return Definition(
        name=name,
        kind=Kind.INT,
        default=default,
        doc=doc,
        check=at_least(minimum),
        synonyms=(f"group.{name}",),
    )


_DEFINITIONS = (
    _group(
        "consumer.assignment.interval.ms",
        "1000",
        "The shortest time between two assignments of the group.",
        0,
    ),
    _group("consumer.heartbeat.interval.ms", "5000", "How often members are asked to heartbeat.", 1),
    _group(
        "consumer.session.timeout.ms", "45000", "How long a member may be silent before it is removed.", 1
    ),
)

GROUP_DEFINITIONS: dict[str, Definition] = {definition.name: definition for definition in _DEFINITIONS}


class GroupConfig(msgspec.Struct, frozen=True):
    """What a group sets for itself; None leaves it to the brokers."""

    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None
    assignment_interval_ms: int | None = None


_UNSET = GroupConfig()


def group_config(image: ClusterImage, group: str) -> GroupConfig:
    values = image.config(GROUP_CONFIG, group)
    if not values:
        return _UNSET
    numbers = {
        name.removeprefix("consumer.").replace(".", "_"): int(value)
        for name, value in values.items()
        if name in GROUP_DEFINITIONS
    }
    return GroupConfig(**numbers)


def group_problem(values: Mapping[str, str], broker_value: Callable[[str], str]) -> str | None:
    """Why values that each parse do not fit the bounds that brokers set. `broker_value(name)` gives the
    text of a broker setting in force."""
    numbers = {}
    for name in GROUP_DEFINITIONS:
        numbers[name] = int(values.get(name) or broker_value(f"group.{name}"))
    order = (
        "consumer.heartbeat.interval.ms",
        "consumer.session.timeout.ms",
        "consumer.assignment.interval.ms",
    )
    for name in order:
        if name == "consumer.assignment.interval.ms" and name not in values:
            continue
        what = name.removeprefix("consumer.")
        lowest, highest = f"group.consumer.min.{what}", f"group.consumer.max.{what}"
        if numbers[name] < int(broker_value(lowest)):
            return f"{name} must be greater than or equal to {lowest}"
        if numbers[name] > int(broker_value(highest)):
            return f"{name} must be less than or equal to {highest}"
    if numbers["consumer.session.timeout.ms"] <= numbers["consumer.heartbeat.interval.ms"]:
        return "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms"
    return None
