"""The right that the settings of a resource need: its own kind's, or the cluster's for brokers and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.acl import CLUSTER_NAME
from penstock.metadata.image import GROUP_CONFIG, TOPIC_CONFIG
from penstock.metadata.refusal import Refusal

if TYPE_CHECKING:
    from penstock.broker.rights import Permit, Right


class ConfigRights(NamedTuple):
    topic: Right
    group: Right
    cluster: Right


def unauthorized(permit: Permit, rights: ConfigRights, resource_type: int, name: str) -> Refusal | None:
    if resource_type == TOPIC_CONFIG:
        right, whose = rights.topic, "Topic"
    elif resource_type == GROUP_CONFIG:
        right, whose = rights.group, "Group"
    else:
        right, whose, name = rights.cluster, "Cluster", CLUSTER_NAME
    return None if permit.allows(right, name) else Refusal(right.code, f"{whose} authorization failed.")
