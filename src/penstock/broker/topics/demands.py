"""The demands of a topic's settings on produced batches, computed once per change of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.produce.checks import Demands
from penstock.wire.compression import CODEC_NAMES

if TYPE_CHECKING:
    from penstock.metadata.configs import TopicConfigs
    from penstock.metadata.image import ClusterImage
    from penstock.settings.topics import TopicConfig

_KEPT_MAX = 1000
"""How many different sets of demands are kept; beyond it all are forgotten and computed again."""


class TopicDemands:
    """Demands by the settings they follow from. Topics with the same settings share them."""

    def __init__(self, configs: TopicConfigs) -> None:
        self._configs = configs
        self._kept: dict[int, tuple[TopicConfig, Demands]] = {}
        self._image: ClusterImage | None = None
        self._found: dict[str, Demands] = {}

    def of(self, image: ClusterImage, topic: str) -> Demands:
        if image is not self._image:
            self._image = image
            self._found = {}
        demands = self._found.get(topic)
        if demands is None:
            demands = self._found[topic] = self._look_up(image, topic)
        return demands

    def _look_up(self, image: ClusterImage, topic: str) -> Demands:
        config = self._configs.get(image, topic)
        kept = self._kept.get(id(config))
        if kept is None:
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            # Keeping the settings keeps their identity from being given to others.
            kept = self._kept[id(config)] = (config, _demands(config))
        return kept[1]


def _demands(config: TopicConfig) -> Demands:
    codec: int | None = None
    level: int | None = None
    if config.compression_type == "uncompressed":
        codec = 0
    elif config.compression_type != "producer":
        codec = CODEC_NAMES.index(config.compression_type)
        levels = {
            "gzip": config.compression_gzip_level,
            "lz4": config.compression_lz4_level,
            "zstd": config.compression_zstd_level,
        }
        level = levels.get(config.compression_type)
    return Demands(
        max_message_bytes=config.max_message_bytes,
        codec=codec,
        codec_level=level,
        compacted=config.compact,
        log_append_time=config.log_append_time,
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
    )
