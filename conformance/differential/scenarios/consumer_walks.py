"""Members of the new protocol take random steps, and both brokers must answer alike.

The seed draws the steps. All members subscribe to one topic, and the assignor is `range`. So the assignment
does not depend on the ids that brokers make up.
"""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Learn, Ref, Step, learned, scenario
from conformance.differential.scenarios.base import DATA, OLD
from conformance.differential.scenarios.consumer_groups import (
    LEAVING,
    LEAVING_FOR_A_WHILE,
    TIMEOUT_MS,
    described,
)
from conformance.differential.scenarios.group_offsets import committing, part
from conformance.differential.world import World
from conformance.wire.codec import Value

WALKS, STEPS = 5, 50
MEMBERS = ("one", "two", "three")


class Walker:
    """One member: what it has heard is kept for each broker by itself."""

    def __init__(self, draw: Draw, group: str, topic: str, name: str) -> None:
        self.draw = draw
        self.group = group
        self.topic = topic
        self.name = name
        self.instance = draw.pick(None, None, f"instance-{name}")
        self.entered = False
        self.slot = f"{group} {name}"
        self.epoch = learned(f"epoch of {self.slot}", 0)

    def heard(self) -> Learn:
        def learn(world: World, answer: Value) -> None:
            if answer["ErrorCode"] != 0:
                return
            world.learned[f"epoch of {self.slot}"] = answer["MemberEpoch"]
            if answer["Assignment"] is not None:
                world.learned[f"share of {self.slot}"] = answer["Assignment"]["TopicPartitions"]

        return learn

    def owned(self, *, whole: bool) -> Ref:
        """What it was given, or the first partition of it: it has not got round to the rest."""

        def get(world: World) -> Any:
            return [
                {**topic, "Partitions": sorted(topic["Partitions"])[: None if whole else 1]}
                for topic in world.learned.get(f"share of {self.slot}", [])
            ]

        return Ref("what it owns", get)

    def beat(self, note: str, epoch: Any, **more: Any) -> Step:
        body = {
            "GroupId": self.group,
            "MemberId": self.name,
            "MemberEpoch": epoch,
            "InstanceId": self.instance,
        }
        learn = self.heard() if epoch not in (LEAVING, LEAVING_FOR_A_WHILE) else None
        return Step(
            body | more, api="ConsumerGroupHeartbeat", version=1, learn=learn, note=f"{self.name}: {note}"
        )

    def step(self) -> Step:
        everything = {
            "RebalanceTimeoutMs": TIMEOUT_MS,
            "SubscribedTopicNames": [self.topic],
            "ServerAssignor": "range",
        }
        chance = self.draw.chance.random()
        if chance < 0.2 or not self.entered:
            if self.instance is not None and self.entered:
                return self.beat("goes for a while", LEAVING_FOR_A_WHILE)
            self.entered = True
            return self.beat("enters", 0, TopicPartitions=[], **everything)
        if chance < 0.55:
            return self.beat(
                "owns", self.epoch, TopicPartitions=self.owned(whole=self.draw.pick(True, True, False))
            )
        if chance < 0.7:
            return self.beat("says nothing new", self.epoch)
        if chance < 0.75:
            return self.beat(
                "says everything", self.epoch, TopicPartitions=self.owned(whole=True), **everything
            )
        if chance < 0.82:
            return self.beat("is out of step", self.draw.pick(1, 2, 3, 5, -3))
        if chance < 0.9:
            self.entered = False
            return self.beat("leaves", LEAVING)
        who = {"GenerationIdOrMemberEpoch": self.epoch, "MemberId": self.name}
        body = committing(9, self.group, [(self.topic, [part(0, self.draw.chance.randrange(99))])], **who)
        return Step(body, api="OffsetCommit", version=9, note=f"{self.name}: commits")


@scenario("ConsumerGroupHeartbeat")
def consumer_walk(draw: Draw, version: int) -> Iterator[Step]:
    if version < 1:
        return
    for _ in range(WALKS):
        group, topic = draw.fresh("group"), draw.pick(DATA, OLD)
        walkers = [Walker(draw, group, topic, name) for name in MEMBERS]
        for _ in range(STEPS):
            yield draw.pick(*walkers).step()
            yield described(group)
