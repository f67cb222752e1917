"""Settings of one group, changed while it runs: `consumer.session.timeout.ms` and its like."""

from typing import NamedTuple

from penstock.groups.settings import GroupSettings
from penstock.metadata.image import GROUP_CONFIG, ClusterImage

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"


class GroupConfig(NamedTuple):
    session_timeout_ms: int
    heartbeat_interval_ms: int


def group_config(image: ClusterImage, group_id: str, settings: GroupSettings) -> GroupConfig:
    """What holds for this group. A value that the broker's limits exclude is brought within them."""
    own = image.config(GROUP_CONFIG, group_id)
    session = _number(own.get(SESSION_TIMEOUT), settings.group_consumer_session_timeout_ms)
    heartbeat = _number(own.get(HEARTBEAT_INTERVAL), settings.group_consumer_heartbeat_interval_ms)
    if not own:
        return GroupConfig(session, heartbeat)
    return GroupConfig(
        min(
            max(session, settings.group_consumer_min_session_timeout_ms),
            settings.group_consumer_max_session_timeout_ms,
        ),
        min(
            max(heartbeat, settings.group_consumer_min_heartbeat_interval_ms),
            settings.group_consumer_max_heartbeat_interval_ms,
        ),
    )


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default
