"""What a group can be."""

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.group import ConsumerGroup

Group = ClassicGroup | ConsumerGroup
