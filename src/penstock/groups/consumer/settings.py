"""The settings of one group of the consumer protocol: its own if it has them, else the broker's."""

from typing import NamedTuple

from penstock.groups.core import Context
from penstock.metadata.configs import group_config


class GroupTimes(NamedTuple):
    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def group_times(context: Context, group_id: str) -> GroupTimes:
    own = group_config(context.image, group_id)
    settings = context.settings
    return GroupTimes(
        settings.group_consumer_session_timeout_ms
        if own.session_timeout_ms is None
        else own.session_timeout_ms,
        settings.group_consumer_heartbeat_interval_ms
        if own.heartbeat_interval_ms is None
        else own.heartbeat_interval_ms,
        settings.group_consumer_assignment_interval_ms
        if own.assignment_interval_ms is None
        else own.assignment_interval_ms,
    )
