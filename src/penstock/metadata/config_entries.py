"""Settings as DescribeConfigs shows them."""

from collections.abc import Iterable, Mapping

import msgspec

from penstock.metadata.configs import Layers, Source, Synonym, definitions, of_all_brokers, with_foreign
from penstock.metadata.image import GROUP_CONFIG, TOPIC_CONFIG, ClusterImage
from penstock.settings.setting import Kind, Setting


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
    names: Iterable[str] | None = None,
) -> list[ConfigEntry]:
    """The settings of a broker, those that it was started with and those that were changed since."""
    layers = Layers(image, broker, given)
    entries = []
    for setting in _among(layers.known.values(), names):
        synonyms = layers.synonyms(setting.name)
        text = layers.text(setting.name)
        entries.append(
            ConfigEntry(
                name=setting.name,
                value=None if text is None else setting.shown(setting.text(text)),
                source=synonyms[0].source if synonyms else Source.DEFAULT,
                kind=setting.kind,
                read_only=not setting.dynamic or setting.kind is Kind.UNKNOWN,
                sensitive=setting.sensitive,
                synonyms=synonyms,
                doc=setting.explained,
            )
        )
    return entries


def describe_all_brokers(image: ClusterImage, names: Iterable[str] | None = None) -> list[ConfigEntry]:
    """The dynamic settings of all brokers: those that were set, and no others."""
    values = of_all_brokers(image)
    known = with_foreign(values)
    entries = []
    for setting in _among((known[name] for name in values if name in known), names):
        value = setting.shown(values[setting.name])
        entries.append(
            ConfigEntry(
                name=setting.name,
                value=value,
                source=Source.DYNAMIC_DEFAULT_BROKER,
                kind=setting.kind,
                read_only=setting.kind is Kind.UNKNOWN,
                sensitive=setting.sensitive,
                synonyms=(Synonym(setting.name, value, Source.DYNAMIC_DEFAULT_BROKER),),
                doc=setting.explained,
            )
        )
    return entries


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
    layers = Layers(image, broker, given)
    values = image.config(resource_type, name)
    entries = []
    for setting in _among(definitions(resource_type).values(), names):
        synonyms = layers.synonyms(setting.synonyms[0]) if setting.synonyms else ()
        value = values.get(setting.name)
        text = layers.default_of(setting) if value is None else value
        shown = None if text is None else setting.text(text)
        if value is not None:
            synonyms = (Synonym(setting.name, shown, source), *synonyms)
        entries.append(
            ConfigEntry(
                name=setting.name,
                value=shown,
                source=synonyms[0].source if synonyms else Source.DEFAULT,
                kind=setting.kind,
                read_only=False,
                sensitive=False,
                synonyms=synonyms,
                doc=setting.explained,
            )
        )
    return entries


def _among(known: Iterable[Setting], names: Iterable[str] | None) -> list[Setting]:
    wanted = None if names is None else set(names)
    return [
        setting for setting in known if not setting.internal and (wanted is None or setting.name in wanted)
    ]
