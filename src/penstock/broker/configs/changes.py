"""Changes to the settings of topics, brokers and groups, for AlterConfigs and IncrementalAlterConfigs.

Resources are decided one by one and changed together, by one entry of the metadata log: a resource that is
refused keeps all its settings, and the others are changed. The checks, their order and their words are
Kafka's. As in Kafka, a broker keeps settings which it does not define (`settings.foreign`). One rule is
stricter: client metrics cannot be set, because nobody would collect them.

The log levels of a broker are not stored: they are checked and changed in the process (`loggers`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.configs import loggers
from penstock.broker.configs.rights import ConfigRights, unauthorized
from penstock.broker.rights import ALTER_CLUSTER_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_TOPIC_CONFIGS
from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.metadata.commands import SetConfig
from penstock.metadata.config_changes import (
    Operation,
    fixed_for,
    group_problem,
    incremental_changes,
    problem_code,
    replacing_changes,
    settings_problem,
    without_effect,
)
from penstock.metadata.configs import broker_value, definitions
from penstock.metadata.image import (
    BROKER_CONFIG,
    BROKER_LOGGER_CONFIG,
    CLIENT_METRICS_CONFIG,
    GROUP_CONFIG,
    TOPIC_CONFIG,
)
from penstock.metadata.names import topic_name_problem
from penstock.metadata.preconditions import check
from penstock.metadata.refusal import Refusal
from penstock.settings.setting import Kind
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage

log = logging.getLogger(__name__)

Changes = dict[str, str | None]
_RIGHTS = ConfigRights(ALTER_TOPIC_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_CLUSTER_CONFIGS)
_OPERATIONS = frozenset(int(operation) for operation in Operation)


class Change(NamedTuple):
    setting: str
    operation: int
    value: str | None


class Wish(NamedTuple):
    """The wanted settings of one resource. `replacing`: settings that are not named are removed."""

    resource_type: int
    name: str
    changes: Sequence[Change]
    replacing: bool = False


async def change_configs(
    broker: Broker, permit: Permit, wishes: Sequence[Wish], *, validate_only: bool
) -> list[Refusal | None]:
    """Carry out the wishes (or only check them): for each, None or why it was refused."""
    return await _ConfigChange(broker, permit, wishes).run(validate_only)


def broker_number(name: str) -> int | None:
    """The number of a broker as Java reads it, or None if it is not one."""
    digits = name[1:] if name[:1] in {"+", "-"} else name
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    number = int(name)
    return number if -(2**31) <= number < 2**31 else None


class _ConfigChange:
    def __init__(self, broker: Broker, permit: Permit, wishes: Sequence[Wish]) -> None:
        self._broker = broker
        self._permit = permit
        self._wishes = wishes
        self._outcomes: list[Refusal | None] = [None] * len(wishes)
        repeated = Counter((wish.resource_type, wish.name) for wish in wishes)
        for at, wish in enumerate(wishes):
            if repeated[wish.resource_type, wish.name] > 1:
                message = "Each resource must appear at most once."
                self._outcomes[at] = Refusal(ErrorCode.INVALID_REQUEST, message)
            else:
                self._outcomes[at] = self._precheck(wish)
        self._open = [at for at, refusal in enumerate(self._outcomes) if refusal is None]

    async def run(self, validate_only: bool) -> list[Refusal | None]:
        levels = [at for at in self._open if self._wishes[at].resource_type == BROKER_LOGGER_CONFIG]
        self._open = [at for at in self._open if at not in levels]
        if not validate_only:
            for at in levels:
                loggers.carry_out(_level_changes(self._wishes[at]))
        if not self._open:
            return self._outcomes
        try:
            if validate_only:
                self._decide(await self._broker.metadata.catch_up())
                return self._outcomes
            outcome = await self._broker.metadata.propose(self._decide)
        except MetadataUnavailableError as error:
            outcome = Refusal(ErrorCode.REQUEST_TIMED_OUT, str(error))
        if isinstance(outcome, Refusal):
            for at in self._open:
                self._outcomes[at] = self._outcomes[at] or outcome
        self._log_without_effect()
        return self._outcomes

    def _log_without_effect(self) -> None:
        """What was kept for tools' sake and changes nothing is not passed over in silence."""
        for at in self._open:
            wish = self._wishes[at]
            if self._outcomes[at] is not None:
                continue
            names = [change.setting for change in wish.changes if change.operation != Operation.DELETE]
            for name, why in without_effect(wish.resource_type, names).items():
                log.warning("setting was kept without effect name=%r resource=%r: %s", name, wish.name, why)

    def _precheck(self, wish: Wish) -> Refusal | None:
        """What is wrong with a wish whatever the state of the cluster."""
        names = [change.setting for change in wish.changes]
        if len(set(names)) < len(names):
            return Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        without_value = [
            change.setting
            for change in wish.changes
            if change.value is None and (wish.replacing or change.operation != Operation.DELETE)
        ]
        if without_value:
            message = f"Null value not supported for : {', '.join(without_value)}"
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        if wish.resource_type == BROKER_LOGGER_CONFIG and not wish.replacing:
            return self._precheck_loggers(wish)
        if wish.resource_type == BROKER_CONFIG:
            return self._precheck_broker(wish)
        if wish.resource_type == CLIENT_METRICS_CONFIG:
            message = "Client metrics are not collected by this cluster."
            return self._unauthorized(wish) or Refusal(ErrorCode.INVALID_REQUEST, message)
        if wish.resource_type not in {TOPIC_CONFIG, GROUP_CONFIG}:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {wish.resource_type}")
        return _unknown_operation(wish) or self._unauthorized(wish)

    def _precheck_loggers(self, wish: Wish) -> Refusal | None:
        refusal = self._unauthorized(wish)
        if refusal is not None:
            return refusal
        number = broker_number(wish.name)
        if number is None:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {wish.name}")
        if number != self._broker.broker_id:
            message = f"Unexpected node id. Expected {self._broker.broker_id}, but received {number}"
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        return loggers.check(_level_changes(wish))

    def _precheck_broker(self, wish: Wish) -> Refusal | None:
        if wish.name:
            number = broker_number(wish.name)
            if number is None:
                message = f"Node id must be an integer, but it is: {wish.name}"
                return Refusal(ErrorCode.INVALID_REQUEST, message)
            if number != self._broker.broker_id:
                message = f"Unexpected broker id, expected {self._broker.broker_id}, but received {wish.name}"
                return Refusal(ErrorCode.INVALID_REQUEST, message)
        refusal = _unknown_operation(wish)
        known = definitions(BROKER_CONFIG)
        for change in wish.changes:
            if refusal is not None or change.operation not in {Operation.APPEND, Operation.SUBTRACT}:
                continue
            definition = known.get(change.setting)
            verb = Operation(change.operation).name.lower()
            if definition is None:
                refusal = Refusal(ErrorCode.INVALID_CONFIG, f"Unknown config name: {change.setting}")
            elif definition.kind is not Kind.LIST:
                message = f"Config value {verb} is not allowed for config key: {change.setting}"
                refusal = Refusal(ErrorCode.INVALID_CONFIG, message)
        return refusal or self._unauthorized(wish)

    def _unauthorized(self, wish: Wish) -> Refusal | None:
        return unauthorized(self._permit, _RIGHTS, wish.resource_type, wish.name)

    def _decide(self, image: ClusterImage) -> list[SetConfig]:
        """The commands for what is open; run again whenever somebody else changed the cluster first."""
        commands = []
        for at in self._open:
            planned = self._plan(image, self._wishes[at])
            self._outcomes[at] = planned if isinstance(planned, Refusal) else None
            if isinstance(planned, SetConfig):
                commands.append(planned)
        return commands

    def _plan(self, image: ClusterImage, wish: Wish) -> SetConfig | Refusal | None:
        """The command that fulfils a wish, None if all is as it should be, or why it cannot be."""
        changes = _changes(image, wish)
        if isinstance(changes, Refusal):
            return changes
        present = image.config(wish.resource_type, wish.name)
        values = dict(present)
        for setting, value in changes.items():
            if value is None:
                values.pop(setting, None)
            else:
                values[setting] = value
        refusal = self._problem(image, wish, values)
        if refusal is not None:
            return refusal
        changes = {setting: value for setting, value in changes.items() if present.get(setting) != value}
        if not changes:
            return None
        name = str(self._broker.broker_id) if wish.resource_type == BROKER_CONFIG and wish.name else wish.name
        command = SetConfig(resource_type=wish.resource_type, name=name, changes=changes)
        return check(image, command) or command

    def _problem(self, image: ClusterImage, wish: Wish, values: Mapping[str, str]) -> Refusal | None:
        """Why the resource cannot have these settings, all that it would then have."""
        kind, name = wish.resource_type, wish.name
        if kind == TOPIC_CONFIG:
            return self._topic_problem(image, name, values)
        if kind == GROUP_CONFIG and not name:
            return Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        if kind == BROKER_CONFIG:
            refusal = _fixed_settings(name, values)
            if refusal is not None:
                return refusal
        problem = settings_problem(kind, values)
        if problem is None and kind == GROUP_CONFIG:
            broker = self._broker

            def in_force(setting: str) -> str:
                return broker_value(image, broker.broker_id, broker.settings.given, setting) or ""

            problem = group_problem(values, in_force)
        return None if problem is None else Refusal(problem_code(kind), problem)

    def _topic_problem(self, image: ClusterImage, name: str, values: Mapping[str, str]) -> Refusal | None:
        if not name:
            return Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        problem = topic_name_problem(name)
        if problem is not None:
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        # What holds for a topic that sets nothing: no topic is called "".
        defaults = self._broker.services.topic_configs.get(image, "")
        problem = settings_problem(TOPIC_CONFIG, values, defaults)
        if problem is not None:
            return Refusal(problem_code(TOPIC_CONFIG), problem)
        if name not in image.topics:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        return None


def _fixed_settings(name: str, settings: Iterable[str]) -> Refusal | None:
    """Why a broker (all of them, if it has no name) does not take some of these settings at runtime."""
    problem, fixed = fixed_for(name, settings)
    return Refusal(ErrorCode.INVALID_REQUEST, f"{problem}: [{', '.join(fixed)}]") if fixed else None


def _unknown_operation(wish: Wish) -> Refusal | None:
    for change in wish.changes:
        if change.operation not in _OPERATIONS:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}")
    return None


def _changes(image: ClusterImage, wish: Wish) -> Changes | Refusal:
    if wish.replacing:
        values = {change.setting: change.value or "" for change in wish.changes}
        return replacing_changes(image, wish.resource_type, wish.name, values)
    operations = [(change.setting, Operation(change.operation), change.value) for change in wish.changes]
    return incremental_changes(image, wish.resource_type, wish.name, operations)


def _level_changes(wish: Wish) -> list[loggers.LevelChange]:
    return [loggers.LevelChange(change.setting, change.operation, change.value) for change in wish.changes]
