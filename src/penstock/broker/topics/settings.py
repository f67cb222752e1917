"""The typed settings of topics as this broker sees them: `broker.service(topic_settings)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.configs import TopicConfigs

if TYPE_CHECKING:
    from penstock.broker.context import Broker


def topic_settings(broker: Broker) -> TopicConfigs:
    return TopicConfigs(broker.broker_id, broker.settings.given)
