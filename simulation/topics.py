"""A topic of the simulated world, as its clients know it."""

import msgspec

PLAIN, BOUNDED, COMPACTED, TRIMMED, AGED = "plain", "bounded", "compacted", "trimmed", "aged"
"""All stays; the newest bytes stay; the newest record of each key stays; what somebody deletes goes; what is
old goes."""

BOUND_BYTES = 600
AGE_SECONDS = 6.0

CONFIGS = {
    PLAIN: {},
    BOUNDED: {"retention.bytes": str(BOUND_BYTES), "retention.ms": "-1"},
    COMPACTED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "2000"},
    TRIMMED: {"retention.ms": "-1"},
    AGED: {"retention.ms": str(int(AGE_SECONDS * 1000))},
}


class Topic(msgspec.Struct):
    name: str
    partitions: int
    kind: str = PLAIN
    id: bytes = b""
    by_id: bool = False
    """Others had its name before, or will: who means this one says its id."""

    @property
    def configs(self) -> dict[str, str]:
        return CONFIGS[self.kind]
