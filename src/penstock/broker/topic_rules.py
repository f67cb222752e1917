"""What a topic's settings demand of what is produced to it, computed once per change of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.produce_checks import Rules
from penstock.metadata.image import BROKER_CONFIG, TOPIC_CONFIG
from penstock.metadata.topic_configs import TOPIC_DEFINITIONS
from penstock.wire.compression import CODEC_NAMES

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage

_KEPT_MAX = 10_000
"""Topics whose rules are kept; beyond it all are forgotten and computed again."""


class TopicRules:
    """The rules of topics, kept while what they follow from is the same."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._kept: dict[str, tuple[object, object, object, Rules]] = {}

    def of(self, image: ClusterImage, name: str) -> Rules:
        own = image.configs.get((TOPIC_CONFIG, name))
        mine = image.configs.get((BROKER_CONFIG, str(self._broker.broker_id)))
        everybodys = image.configs.get((BROKER_CONFIG, ""))
        kept = self._kept.get(name)
        if kept is not None and kept[0] is own and kept[1] is mine and kept[2] is everybodys:
            return kept[3]
        rules = self._compute(image, name)
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[name] = (own, mine, everybodys, rules)
        return rules

    def _compute(self, image: ClusterImage, topic: str) -> Rules:
        def text(name: str) -> str:
            definition = TOPIC_DEFINITIONS[name]
            own = image.config(TOPIC_CONFIG, topic).get(name)
            if own is not None:
                return own
            for synonym in definition.synonyms:
                for broker in (str(self._broker.broker_id), ""):
                    dynamic = image.config(BROKER_CONFIG, broker).get(synonym)
                    if dynamic is not None:
                        return dynamic
                setting = getattr(self._broker.settings, synonym.replace(".", "_"), None)
                if setting is not None:
                    return str(setting)
            return definition.default or ""

        codec_name = text("compression.type")
        codec: int | None = None
        level: int | None = None
        if codec_name != "producer":
            codec = 0 if codec_name == "uncompressed" else CODEC_NAMES.index(codec_name)
            if codec_name in ("gzip", "lz4", "zstd"):
                level = int(text(f"compression.{codec_name}.level"))
        return Rules(
            max_message_bytes=int(text("max.message.bytes")),
            codec=codec,
            codec_level=level,
            compacted="compact" in text("cleanup.policy"),
            log_append_time=text("message.timestamp.type") == "LogAppendTime",
            before_max_ms=int(text("message.timestamp.before.max.ms")),
            after_max_ms=int(text("message.timestamp.after.max.ms")),
        )


def rules_of(broker: Broker, image: ClusterImage, name: str) -> Rules:
    return broker.service(TopicRules).of(image, name)
