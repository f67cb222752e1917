"""What a group can be."""

from penstock.groups.classic import ClassicGroup
from penstock.groups.consumer import ConsumerGroup

Group = ClassicGroup | ConsumerGroup
