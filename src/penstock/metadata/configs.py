"""Settings in force: checking changes, describing them as DescribeConfigs does, and topic settings typed.

A topic's setting comes from the first of: the topic itself, the broker's dynamic settings, the dynamic
settings of all brokers (the broker named ""), what the broker was started with (`given`), the default.
The definitions are loaded when first needed: a broker that nobody configures never needs them.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from penstock.metadata.image import BROKER_CONFIG, GROUP_CONFIG, TOPIC_CONFIG, ClusterImage
from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.metadata.definitions import Definition, Value


MIN_ISR = "min.insync.replicas"
CLUSTER_SETTINGS: Mapping[str, str] = {MIN_ISR: "1"}
"""What all brokers have as a dynamic setting from the beginning. Kafka writes it when a cluster is formatted
(KIP-966), so its tools, and clients' tests, find it among the settings that are not defaults. It can be
changed for all brokers, not for one, and not be removed."""


class Source(IntEnum):
    """Where a value comes from; the numbers are those of DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class Operation(IntEnum):
    """What IncrementalAlterConfigs does to one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Synonym(msgspec.Struct, frozen=True):
    name: str
    value: str | None
    source: Source


class ConfigEntry(msgspec.Struct, frozen=True):
    """One setting as it is described to clients."""

    name: str
    value: str | None
    source: Source
    kind: int
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    doc: str


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one topic in force, typed. The defaults are Kafka's."""

    delete: bool = True
    """cleanup.policy names delete."""
    compact: bool = False
    """cleanup.policy names compact."""
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86400000
    file_delete_delay_ms: int = 60000
    max_compaction_lag_ms: int = 9223372036854775807
    max_message_bytes: int = 1048588
    message_timestamp_after_max_ms: int = 3600000
    message_timestamp_before_max_ms: int = 9223372036854775807
    log_append_time: bool = False
    """message.timestamp.type is LogAppendTime."""
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    retention_bytes: int = -1
    retention_ms: int = 604800000
    segment_bytes: int = 1073741824
    segment_ms: int = 604800000


class TopicConfigs:
    """The typed settings of every topic as one broker sees them, computed once per change."""

    def __init__(self, broker: int, given: Mapping[str, str] | None = None) -> None:
        """`given`: the broker settings that were set when the broker started, as text."""
        self._broker = str(broker)
        self._given = given or {}
        self._layers: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._base = TopicConfig()
        self._made: dict[str, tuple[Mapping[str, str], TopicConfig]] = {}

    def get(self, image: ClusterImage, topic: str) -> TopicConfig:
        base = self._defaults(image)
        values = image.config(TOPIC_CONFIG, topic)
        if not values:
            return base
        # Images share what did not change, so the same mapping means the same settings.
        made = self._made.get(topic)
        if made is None or made[0] is not values:
            made = self._made[topic] = (values, _with_values(base, values))
        return made[1]

    def _defaults(self, image: ClusterImage) -> TopicConfig:
        layers = (image.config(BROKER_CONFIG, self._broker), image.config(BROKER_CONFIG, ""))
        known = self._layers
        if known is None or known[0] is not layers[0] or known[1] is not layers[1]:
            self._layers = layers
            # Topics that are gone are forgotten here too, which bounds the cache by what exists.
            self._made.clear()
            if layers[0] or layers[1] or self._given:
                self._base = _with_values(
                    TopicConfig(), _default_texts(_Layers(image, self._broker, self._given))
                )
        if len(self._made) > 2 * len(image.topics) + 100:
            self._made.clear()
        return self._base


def settings_problem(
    resource_type: int, values: Mapping[str, str], defaults: TopicConfig | None = None
) -> str | None:
    """Why a resource cannot have these dynamic settings (all that it would then have), or None.

    `defaults`: what holds for a topic that sets nothing; matters where two settings must fit together.
    """
    from penstock.metadata.definitions import VALUE_LENGTH_MAX, ValueProblem
    from penstock.metadata.unread_configs import UNDEFINED_MAX

    known = definitions(resource_type)
    if resource_type == BROKER_CONFIG:
        known = _with_unread(known, values)
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
        effective = _with_values(defaults or TopicConfig(), values)
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
        if definition is None or definition.kind.name != "LIST":
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


def describe_topic(
    image: ClusterImage,
    topic: str,
    broker: int,
    given: Mapping[str, str],
    names: Iterable[str] | None = None,
) -> list[ConfigEntry]:
    """The settings of a topic, as `broker` sees them; `names` chooses some."""
    return _describe_dependent(image, TOPIC_CONFIG, topic, Source.TOPIC, broker, given, names)


def describe_group(
    image: ClusterImage,
    group: str,
    broker: int,
    given: Mapping[str, str],
    names: Iterable[str] | None = None,
) -> list[ConfigEntry]:
    """The settings of a consumer group."""
    return _describe_dependent(image, GROUP_CONFIG, group, Source.GROUP, broker, given, names)


def describe_broker(
    image: ClusterImage,
    broker: int,
    given: Mapping[str, str],
    docs: Mapping[str, str],
    names: Iterable[str] | None = None,
) -> list[ConfigEntry]:
    """The settings of a broker, those that it was started with and those that were changed since."""
    layers = _Layers(image, str(broker), given)
    entries = []
    for definition in _among(layers.known.values(), names):
        synonyms = layers.synonyms(definition.name)
        text = layers.text(definition.name)
        entries.append(
            ConfigEntry(
                name=definition.name,
                value=None if text is None or definition.veiled else definition.text(text),
                source=synonyms[0].source if synonyms else Source.DEFAULT,
                kind=definition.kind,
                read_only=not definition.dynamic or definition.veiled,
                sensitive=definition.veiled,
                synonyms=synonyms,
                doc=docs.get(definition.name, definition.doc),
            )
        )
    return entries


def describe_all_brokers(
    image: ClusterImage, docs: Mapping[str, str], names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """The dynamic settings of all brokers: those that were set, and no others."""
    values = _of_all_brokers(image)
    known = _with_unread(definitions(BROKER_CONFIG), values)
    chosen = None if names is None else set(names)
    entries = []
    for name, text in values.items():
        if name not in known or (chosen is not None and name not in chosen):
            continue
        veiled = known[name].veiled
        value = None if veiled else text
        entries.append(
            ConfigEntry(
                name=name,
                value=value,
                source=Source.DYNAMIC_DEFAULT_BROKER,
                kind=known[name].kind,
                read_only=veiled,
                sensitive=veiled,
                synonyms=(Synonym(name, value, Source.DYNAMIC_DEFAULT_BROKER),),
                doc=docs.get(name, known[name].doc),
            )
        )
    return entries


def broker_value(image: ClusterImage, broker: int, given: Mapping[str, str], name: str) -> str | None:
    """The text of one broker setting in force."""
    return _Layers(image, str(broker), given).text(name)


def definitions(resource_type: int) -> "Mapping[str, Definition]":
    """All settings of a kind of resource, by name."""
    if resource_type == TOPIC_CONFIG:
        from penstock.metadata.topic_configs import TOPIC_DEFINITIONS

        return TOPIC_DEFINITIONS
    if resource_type == BROKER_CONFIG:
        from penstock.metadata.broker_configs import BROKER_DEFINITIONS

        return BROKER_DEFINITIONS
    if resource_type == GROUP_CONFIG:
        from penstock.metadata.group_configs import GROUP_DEFINITIONS

        return GROUP_DEFINITIONS
    return {}


def changes_at_runtime(name: str) -> bool:
    """Whether a running broker takes this setting."""
    definition = _with_unread(definitions(BROKER_CONFIG), (name,)).get(name)
    return definition is not None and definition.dynamic


def _of_all_brokers(image: ClusterImage) -> Mapping[str, str]:
    return {**CLUSTER_SETTINGS, **image.config(BROKER_CONFIG, "")}


def _with_unread(known: "Mapping[str, Definition]", names: Iterable[str]) -> "Mapping[str, Definition]":
    """The definitions of brokers' settings, with those of the named ones that nothing here reads."""
    unread = [name for name in names if name not in known]
    if not unread:
        return known
    from penstock.metadata.unread_configs import unread_definition

    found = ((name, unread_definition(name)) for name in unread)
    return {**known, **{name: definition for name, definition in found if definition is not None}}


def _name_problem(resource_type: int, name: str) -> str:
    if resource_type == BROKER_CONFIG:
        return f"Cannot update these configs dynamically: [{name}]"
    kind = "topic" if resource_type == TOPIC_CONFIG else "group"
    return f"Unknown {kind} config name: {name}"


class _Layers:
    """The settings of one broker: dynamic, dynamic for all brokers, given at start, default."""

    def __init__(self, image: ClusterImage, broker: str, given: Mapping[str, str]) -> None:
        own, shared = image.config(BROKER_CONFIG, broker), _of_all_brokers(image)
        self.known = _with_unread(definitions(BROKER_CONFIG), (*own, *shared))
        self._layers = (
            (own, Source.DYNAMIC_BROKER),
            (shared, Source.DYNAMIC_DEFAULT_BROKER),
            (given, Source.STATIC_BROKER),
        )

    def text(self, name: str) -> str | None:
        for values, _ in self._layers:
            if name in values:
                return values[name]
        return self.known[name].default

    def synonyms(self, name: str) -> tuple[Synonym, ...]:
        """What gives the setting its value, the strongest first, as Kafka lists it: settings in other
        units come after the setting itself or not at all."""
        from penstock.metadata.broker_configs import BROKER_SYNONYMS

        names = BROKER_SYNONYMS.get(name, (name,))
        found = [
            Synonym(other, None if self.known[other].veiled else values[other], source)
            for values, source in self._layers
            for other in names
            if other in values
        ]
        for other in names:
            default = self.known[other].default
            if default is not None:
                found.append(Synonym(other, default, Source.DEFAULT))
        while found and found[0].name != name:
            del found[0]
        return tuple(found)

    def default_of(self, definition: "Definition") -> str | None:
        """The value of a topic or group setting that is not set on the topic or group."""
        for synonym in definition.synonyms:
            text = self.text(synonym)
            if text is not None:
                return _in_milliseconds(synonym, text)
        return definition.default


def _in_milliseconds(name: str, text: str) -> str:
    for unit, factor in ((".minutes", 60_000), (".hours", 3_600_000)):
        if name.endswith(unit):
            return str(max(-1, int(text) * factor))
    return text


def _describe_dependent(
    image: ClusterImage,
    resource_type: int,
    name: str,
    source: Source,
    broker: int,
    given: Mapping[str, str],
    names: Iterable[str] | None,
) -> list[ConfigEntry]:
    """Settings whose defaults are settings of brokers."""
    layers = _Layers(image, str(broker), given)
    values = image.config(resource_type, name)
    entries = []
    for definition in _chosen(resource_type, names):
        synonyms = layers.synonyms(definition.synonyms[0]) if definition.synonyms else ()
        value = values.get(definition.name)
        text = layers.default_of(definition) if value is None else value
        shown = None if text is None else definition.text(text)
        if value is not None:
            synonyms = (Synonym(definition.name, shown, source), *synonyms)
        entries.append(
            ConfigEntry(
                name=definition.name,
                value=shown,
                source=synonyms[0].source if synonyms else Source.DEFAULT,
                kind=definition.kind,
                read_only=False,
                sensitive=False,
                synonyms=synonyms,
                doc=f"{definition.doc} {definition.moot}" if definition.moot else definition.doc,
            )
        )
    return entries


def _chosen(resource_type: int, names: Iterable[str] | None) -> "list[Definition]":
    return _among(definitions(resource_type).values(), names)


def _among(known: "Iterable[Definition]", names: Iterable[str] | None) -> "list[Definition]":
    wanted = None if names is None else set(names)
    return [
        definition
        for definition in known
        if not definition.internal and (wanted is None or definition.name in wanted)
    ]


def _default_texts(layers: _Layers) -> dict[str, str]:
    texts = {}
    for definition in definitions(TOPIC_CONFIG).values():
        text = layers.default_of(definition)
        if text is not None:
            texts[definition.name] = text
    return texts


def _with_values(base: TopicConfig, values: Mapping[str, str]) -> TopicConfig:
    """`base` with topic settings laid over it. Settings that have no effect here are left out."""
    known = definitions(TOPIC_CONFIG)
    changes: dict[str, Any] = {}
    for name, text in values.items():
        definition = known.get(name)
        if definition is None or definition.moot or definition.fixed:
            continue
        changes |= _typed(name, definition.parse(text))
    if "internal_segment_bytes" in changes:
        changes["segment_bytes"] = changes.pop("internal_segment_bytes")
    return msgspec.structs.replace(base, **changes)


def _typed(name: str, value: "Value") -> "dict[str, Value]":
    if name == "cleanup.policy":
        assert isinstance(value, tuple)
        return {"delete": "delete" in value, "compact": "compact" in value}
    if name == "message.timestamp.type":
        return {"log_append_time": value == "LogAppendTime"}
    return {name.replace(".", "_"): value}
