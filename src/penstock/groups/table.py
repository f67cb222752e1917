"""The types that a group can have."""

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.group import ConsumerGroup

Group = ClassicGroup | ConsumerGroup
