"""Settings in force: the layers that give a value, and the typed settings of topics and groups.

A topic's setting comes from the first of: the topic itself, the broker's dynamic settings, the dynamic
settings of all brokers (the broker named ""), what the broker was started with (`given`), the default.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from penstock.metadata.image import BROKER_CONFIG, GROUP_CONFIG, TOPIC_CONFIG, ClusterImage
from penstock.settings.brokers import BROKER_SETTINGS
from penstock.settings.groups import GROUP_SETTINGS
from penstock.settings.setting import Setting
from penstock.settings.topic_defaults import SAME_IN_OTHER_UNITS
from penstock.settings.topics import SEGMENT_BYTES_FOR_TESTS, TOPIC_SETTINGS, TopicConfig

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


class Synonym(msgspec.Struct, frozen=True):
    name: str
    value: str | None
    source: Source


class TopicConfigs:
    """The typed settings of every topic as one broker sees them, computed once per change."""

    def __init__(self, broker: int, given: Mapping[str, str] | None = None) -> None:
        """`given`: the broker settings that were set when the broker started, as text."""
        self._broker = broker
        self._given = given or {}
        self._configs: object = None
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
            made = self._made[topic] = (values, with_values(base, values))
        return made[1]

    def _defaults(self, image: ClusterImage) -> TopicConfig:
        if image.configs is not self._configs:
            self._configs = image.configs
            self._follow(image)
        if len(self._made) > 2 * len(image.topics) + 100:
            self._made.clear()
        return self._base

    def _follow(self, image: ClusterImage) -> None:
        layers = image.broker_configs(self._broker)
        known = self._layers
        if known is not None and known[0] is layers[0] and known[1] is layers[1]:
            return
        self._layers = layers
        # Topics that are gone are forgotten here too, which bounds the cache by what exists.
        self._made.clear()
        self._base = TopicConfig()
        if layers[0] or layers[1] or self._given:
            self._base = with_values(self._base, _default_texts(Layers(image, self._broker, self._given)))


class GroupConfig(msgspec.Struct, frozen=True):
    """The settings of one group; None leaves one to the brokers."""

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
        if name in GROUP_SETTINGS
    }
    return GroupConfig(**numbers)


def broker_value(image: ClusterImage, broker: int, given: Mapping[str, str], name: str) -> str | None:
    """The text of one broker setting in force."""
    return Layers(image, broker, given).text(name)


def definitions(resource_type: int) -> Mapping[str, Setting]:
    """All settings of a kind of resource, by name."""
    return _TABLES.get(resource_type, {})


_TABLES = {TOPIC_CONFIG: TOPIC_SETTINGS, BROKER_CONFIG: BROKER_SETTINGS, GROUP_CONFIG: GROUP_SETTINGS}


def with_foreign(names: Iterable[str]) -> Mapping[str, Setting]:
    """The settings of brokers, with those of the named ones that nothing here reads."""
    foreign = [name for name in names if name not in BROKER_SETTINGS]
    if not foreign:
        return BROKER_SETTINGS
    # Few clusters have any, and there are many of them.
    from penstock.settings.foreign import foreign_setting

    found = (foreign_setting(name) for name in foreign)
    return {**BROKER_SETTINGS, **{setting.name: setting for setting in found if setting is not None}}


def of_all_brokers(image: ClusterImage) -> Mapping[str, str]:
    """The dynamic settings that hold for every broker."""
    return {**CLUSTER_SETTINGS, **image.config(BROKER_CONFIG, "")}


class Layers:
    """The settings of one broker: dynamic, dynamic for all brokers, given at start, default."""

    def __init__(self, image: ClusterImage, broker: int, given: Mapping[str, str]) -> None:
        own, shared = image.config(BROKER_CONFIG, str(broker)), of_all_brokers(image)
        self.known = with_foreign((*own, *shared))
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
        names = SAME_IN_OTHER_UNITS.get(name, (name,))
        found = [
            Synonym(other, self.known[other].shown(values[other]), source)
            for values, source in self._layers
            for other in names
            if other in values
        ]
        for other in names:
            setting = self.known[other]
            if setting.default is not None:
                found.append(Synonym(other, setting.shown(setting.default), Source.DEFAULT))
        while found and found[0].name != name:
            del found[0]
        return tuple(found)

    def default_of(self, setting: Setting) -> str | None:
        """The value of a topic or group setting that is not set on the topic or group."""
        for synonym in setting.synonyms:
            text = self.text(synonym)
            if text is not None:
                return _in_milliseconds(synonym, text)
        return setting.default


def _in_milliseconds(name: str, text: str) -> str:
    for unit, factor in ((".minutes", 60_000), (".hours", 3_600_000)):
        if name.endswith(unit):
            return str(max(-1, int(text) * factor))
    return text


def _default_texts(layers: Layers) -> dict[str, str]:
    texts = {}
    for setting in TOPIC_SETTINGS.values():
        text = layers.default_of(setting)
        if text is not None:
            texts[setting.name] = text
    return texts


def with_values(base: TopicConfig, values: Mapping[str, str]) -> TopicConfig:
    """`base` with topic settings laid over it. Settings that have no effect here are left out."""
    changes: dict[str, Any] = {}
    for name, text in values.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is not None and not (setting.moot or setting.fixed):
            changes[setting.field] = setting.typed(text)
    segment_bytes = changes.pop(SEGMENT_BYTES_FOR_TESTS.field, None)
    if segment_bytes is not None:
        changes["segment_bytes"] = segment_bytes
    return msgspec.structs.replace(base, **changes)
