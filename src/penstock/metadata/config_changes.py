"""Changes of settings: which settings a resource can have, in Kafka's words, and which a request changes."""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum

from penstock.metadata.configs import MIN_ISR, definitions, with_foreign, with_values
from penstock.metadata.image import BROKER_CONFIG, TOPIC_CONFIG, ClusterImage
from penstock.metadata.refusal import Refusal
from penstock.settings.groups import GROUP_SETTINGS
from penstock.settings.setting import VALUE_LENGTH_MAX, Kind, Setting, ValueProblem
from penstock.settings.topics import TopicConfig
from penstock.wire.errors import ErrorCode

UNDEFINED_MAX = 200
"""Settings without a definition that one resource can have. Every broker keeps them in memory."""


class Operation(IntEnum):
    """The operations of IncrementalAlterConfigs on one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def settings_problem(
    resource_type: int, values: Mapping[str, str], defaults: TopicConfig | None = None
) -> str | None:
    """Why a resource cannot have these dynamic settings (all that it would then have), or None.

    `defaults`: what holds for a topic that sets nothing; matters where two settings must fit together.
    """
    known = _known(resource_type, values)
    for name in values:
        if name not in known or (resource_type == BROKER_CONFIG and not known[name].dynamic):
            return _name_problem(resource_type, name)
    if resource_type == BROKER_CONFIG and len(values) > len(definitions(resource_type)) + UNDEFINED_MAX:
        return f"A broker cannot have more than {UNDEFINED_MAX} settings that it does not define."
    for name, value in values.items():
        if len(value) > VALUE_LENGTH_MAX:
            return (
                f"The configuration value cannot be added because it exceeds the maximum value size of "
                f"{VALUE_LENGTH_MAX} bytes."
            )
        try:
            known[name].parse(value)
        except ValueProblem as problem:
            return str(problem)
    if resource_type == TOPIC_CONFIG:
        effective = with_values(defaults or TopicConfig(), values)
        lowest, highest = effective.min_compaction_lag_ms, effective.max_compaction_lag_ms
        if lowest > highest:
            return (
                f"conflict topic config setting min.compaction.lag.ms ({lowest}) > "
                f"max.compaction.lag.ms ({highest})"
            )
    return None


def problem_code(resource_type: int) -> ErrorCode:
    """The error code for settings that a resource cannot have. For brokers it is the one that Kafka's
    brokers answer with, though it is not the obvious one."""
    return ErrorCode.INVALID_REQUEST if resource_type == BROKER_CONFIG else ErrorCode.INVALID_CONFIG


def incremental_changes(
    image: ClusterImage,
    resource_type: int,
    name: str,
    operations: Iterable[tuple[str, Operation, str | None]],
) -> dict[str, str | None] | Refusal:
    """What IncrementalAlterConfigs changes: (setting, operation, value) each."""
    known = definitions(resource_type)
    present = image.config(resource_type, name)
    changes: dict[str, str | None] = {}
    for setting, operation, value in operations:
        if resource_type == BROKER_CONFIG and setting == MIN_ISR and (name or operation == Operation.DELETE):
            level, how = ("Broker", "altered") if name else ("Cluster", "removed")
            return Refusal(ErrorCode.INVALID_CONFIG, f"{level}-level {MIN_ISR} cannot be {how}.")
        if operation == Operation.DELETE:
            changes[setting] = None
            continue
        if value is None:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {setting}")
        if operation == Operation.SET:
            changes[setting] = value
            continue
        definition = known.get(setting)
        if definition is None or definition.kind is not Kind.LIST:
            message = f"Can't {operation.name} to key {setting} because its type is not LIST."
            return Refusal(ErrorCode.INVALID_CONFIG, message)
        before = present.get(setting, definition.default or "")
        parts = before.split(",") if before else []
        for part in value.split(","):
            if operation == Operation.APPEND and part not in parts:
                parts.append(part)
            elif operation == Operation.SUBTRACT and part in parts:
                parts.remove(part)
        changes[setting] = ",".join(parts)
    return changes


def replacing_changes(
    image: ClusterImage, resource_type: int, name: str, values: Mapping[str, str]
) -> dict[str, str | None]:
    """What AlterConfigs changes: the resource then has `values` and nothing else."""
    changes: dict[str, str | None] = dict.fromkeys(image.config(resource_type, name))
    changes.update(values)
    return changes


def group_problem(values: Mapping[str, str], broker_value: Callable[[str], str]) -> str | None:
    """Why values that each parse do not fit the bounds that brokers set. `broker_value(name)` gives the
    text of a broker setting in force."""
    numbers = {}
    for name in GROUP_SETTINGS:
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


def fixed_for(broker: str, names: Iterable[str]) -> tuple[str, list[str]]:
    """Which of these settings a broker (all of them, if it has no name) does not take while it runs, and why
    in Kafka's words; none: ("", [])."""
    known = with_foreign(names)
    fixed = sorted(name for name in names if name not in known or not known[name].dynamic)
    if fixed:
        return "Cannot update these configs dynamically", fixed
    alone = [] if broker else sorted(name for name in names if known[name].update == "per-broker")
    if alone:
        return "Cannot update these configs at default cluster level, broker id must be specified", alone
    return "", []


def without_effect(resource_type: int, names: Iterable[str]) -> dict[str, str]:
    """Of settings that a resource can have, those that nothing depends on, and why."""
    known = _known(resource_type, names)
    return {name: known[name].moot for name in names if name in known and known[name].moot}


def _known(resource_type: int, names: Iterable[str]) -> Mapping[str, Setting]:
    return with_foreign(names) if resource_type == BROKER_CONFIG else definitions(resource_type)


def _name_problem(resource_type: int, name: str) -> str:
    if resource_type == BROKER_CONFIG:
        return f"Cannot update these configs dynamically: [{name}]"
    kind = "topic" if resource_type == TOPIC_CONFIG else "group"
    return f"Unknown {kind} config name: {name}"
