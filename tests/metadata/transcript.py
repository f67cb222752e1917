"""Runs transcripts: what was proposed, line by line, and the image that came of it.

A transcript is a text of blocks. A block is lines of commands, a line `----`, and the expected image, up to
an empty line. Each line is one entry; commands that belong to one entry are joined by ` + `. A refusal is
shown in place of its effect. `@` after a broker means its present epoch.
"""

import shlex

from penstock.metadata.apply import apply_entry
from penstock.metadata.commands import (
    AdvanceLogStart,
    AllocateProducerIds,
    AnyCommand,
    AssignLeaders,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    LeaderMove,
    LogStart,
    MoveLeader,
    RemoveBroker,
    SetConfig,
    SetReplicas,
    Settled,
    SettlePartitions,
)
from penstock.metadata.image import ClusterImage, ManifestRef, WalRef
from penstock.metadata.placement import asked_hand_overs, hand_overs, more_partitions, place, successors
from penstock.metadata.preconditions import check
from penstock.metadata.refusal import Refusal

from .worlds import check_image, registered, topic_id


class Transcript:
    def __init__(self) -> None:
        self.image = ClusterImage(cluster_id="transcript")

    def run(self, text: str) -> str:
        """The transcript with every expectation replaced by what happened."""
        result = []
        for block in text.strip().split("\n\n"):
            lines = block.split("\n")
            commands = lines[: lines.index("----")] if "----" in lines else lines
            output = [line for line in map(self.entry, (c for c in commands if c[0] != "#")) if line]
            result.append("\n".join([*commands, "----", *output, *show(self.image)]))
        return "\n\n".join(result) + "\n"

    def entry(self, line: str) -> str:
        """One entry; returns the refusal, if any."""
        image = self.image
        done: list[AnyCommand] = []
        for text in line.split(" + "):
            words = shlex.split(text)
            # Wishes are decided on the image before the entry and checked on what it has come to.
            wish = getattr(self, words[0].replace("-", "_"))(self.image, words[1:])
            refusal = wish if isinstance(wish, Refusal) else check(image, wish)
            if refusal is not None:
                return f"refused {refusal.code.name}: {refusal.message}"
            done.append(wish)
            image = apply_entry(self.image, done)
        self.image = apply_entry(self.image, done)
        check_image(self.image)
        return ""

    def epoch(self, image: ClusterImage, broker: int) -> int:
        info = image.brokers.get(broker)
        return -1 if info is None else info.epoch

    def who(self, image: ClusterImage, text: str) -> tuple[int, int]:
        broker, at, epoch = text.partition("@")
        return int(broker), int(epoch) if epoch or not at else self.epoch(image, int(broker))

    # Commands.

    def register(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        options = dict(word.split("=") for word in words[1:])
        broker = int(words[0])
        more = {"previous_epoch": int(options.get("after", self.epoch(image, broker)))}
        if "sealed" in options:
            more["sealed"] = int(options["sealed"])
        return registered(broker, options.get("rack"), **more)

    def fence(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        return FenceBroker(*self.who(image, words[0]), int(words[1].removeprefix("flushes=")))

    def remove(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        count = int(words[1].removeprefix("flushes=")) if len(words) > 1 else None
        return RemoveBroker(*self.who(image, words[0]), count)

    def take_over(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        broker = -1 if words[0] == "leaderless" else int(words[0])
        return AssignLeaders(0, 0, successors(image, broker))

    def hand_over(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        broker, epoch = self.who(image, words[0])
        plans = asked_hand_overs if words[1:] == ["asked"] else hand_overs
        moves = (
            LeaderMove(p.topic_id, p.partition, p.leader_epoch, p.leader, True, None, p.replicas)
            for p in plans(image, broker)
        )
        return AssignLeaders(broker, epoch, tuple(moves))

    def move(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        topic, index = self.partition(image, words[0])
        options = dict(word.split("=") for word in words[1:])
        broker, epoch = self.who(image, options.get("by", "0@0"))
        leader_epoch = int(options.get("epoch", image.topics[topic].partitions[index].leader_epoch))
        settled = "manifest" in options
        manifest = ManifestRef(options["manifest"], 0, 1) if settled else None
        move = LeaderMove(
            image.topics[topic].id, index, leader_epoch, int(options["to"]), settled, manifest, None
        )
        return AssignLeaders(broker, epoch, (move,))

    def ask(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        topic, index = self.partition(image, words[0])
        leader_epoch = image.topics[topic].partitions[index].leader_epoch
        return MoveLeader(image.topics[topic].id, index, leader_epoch, int(words[1].removeprefix("to=")))

    def reassign(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        topic, index = self.partition(image, words[0])
        return SetReplicas(image.topics[topic].id, index, _numbers(words[1]))

    def create(self, image: ClusterImage, words: list[str]) -> AnyCommand | Refusal:
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        count, factor = int(options.pop("partitions", "-1")), int(options.pop("factor", "-1"))
        manual = options.pop("assigned", "")
        orders = (
            tuple(_numbers(part) for part in manual.split(":"))
            if manual
            else place(image, count, factor, defaults=(1, 1))
        )
        if isinstance(orders, Refusal):
            return orders
        return CreateTopic(topic_id(image.version), words[0], orders, options, bool(manual))

    def delete(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        topic = image.topic(words[0])
        return DeleteTopic(topic.id if topic else bytes(16))

    def grow(self, image: ClusterImage, words: list[str]) -> AnyCommand | Refusal:
        topic = image.topics[words[0]]
        orders = more_partitions(image, topic, int(words[1]), None)
        if isinstance(orders, Refusal):
            return orders
        return CreatePartitions(topic.id, len(topic.partitions), orders)

    def set(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        kind = {"topic": 2, "broker": 4, "group": 32}[words[0]]
        changes: dict[str, str | None] = {}
        for word in words[2:]:
            name, equals, value = word.partition("=")
            changes[name] = value if equals else None
        return SetConfig(kind, words[1], changes)

    def allocate(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        first = int(words[2]) if len(words) > 2 else image.next_producer_id
        return AllocateProducerIds(*self.who(image, words[0]), first, int(words[1]))

    def settle(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        broker, epoch = self.who(image, words[0])
        items = []
        start = None
        for word in words[1:]:
            if word.startswith("start="):
                start = int(word.removeprefix("start="))
                continue
            place_, _, rest = word.partition("=")
            topic, index = self.partition(image, place_)
            key, _, dropped = rest.partition("/")
            leader_epoch = image.topics[topic].partitions[index].leader_epoch
            wals = tuple(WalRef(*self.who(image, wal)) for wal in dropped.split(",") if wal)
            manifest = ManifestRef(key, 0, 1) if key else None
            items.append(Settled(image.topics[topic].id, index, leader_epoch, manifest, wals))
        return SettlePartitions(broker, epoch, tuple(items), start)

    def trim(self, image: ClusterImage, words: list[str]) -> AnyCommand:
        broker, epoch = self.who(image, words[0])
        topic, index = self.partition(image, words[1])
        leader_epoch = image.topics[topic].partitions[index].leader_epoch
        if len(words) > 3:
            leader_epoch = int(words[3].removeprefix("epoch="))
        item = LogStart(image.topics[topic].id, index, leader_epoch, int(words[2]))
        return AdvanceLogStart(broker, epoch, (item,))

    def partition(self, image: ClusterImage, text: str) -> tuple[str, int]:
        topic, _, index = text.rpartition("-")
        return topic, int(index)


def show(image: ClusterImage) -> list[str]:
    lines = [f"version {image.version}, controller {image.controller_id}"]
    for info in image.brokers.values():
        rack = f" rack {info.rack}" if info.rack else ""
        lines.append(f"broker {info.id}@{info.epoch}{rack}{' fenced' if info.fenced else ''}")
    for name, topic in image.topics.items():
        lines.append(f"topic {name}{' pinned' if topic.pinned else ''}")
        for index, p in enumerate(topic.partitions):
            wals = " ".join(f"{wal.broker}@{wal.epoch}" for wal in p.wals)
            start = f" start {p.log_start}" if p.log_start else ""
            manifest = f" manifest {p.manifest.key}" if p.manifest else ""
            lines.append(
                f"  {index}: leader {p.leader} epoch {p.leader_epoch} "
                f"replicas {_list(image.shown_replicas(p))} isr {_list(image.isr(p))}"
                f"{start}{manifest} wals {wals or 'none'}"
            )
    for (identity, index), move in image.moves.items():
        former = f" (former order {_list(move.former)})" if move.former else ""
        to = str(move.leader) if move.leader >= 0 else "the first of its order"
        lines.append(f"asked to hand over {image.names[identity]}-{index} to {to}{former}")
    for wal, count in image.sealed.items():
        lines.append(f"sealed {wal.broker}@{wal.epoch} flushes {count}")
    for wal, start_at in image.wal_starts.items():
        lines.append(f"wal {wal.broker}@{wal.epoch} starts at {start_at}")
    for (kind, name), values in image.configs.items():
        settings = " ".join(f"{key}={value}" for key, value in values.items())
        lines.append(f"config {({2: 'topic', 4: 'broker', 32: 'group'})[kind]} {name or '(all)'}: {settings}")
    if image.next_producer_id:
        lines.append(f"next producer id {image.next_producer_id}")
    return lines


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",")) if text else ()


def _list(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers)) or "none"
