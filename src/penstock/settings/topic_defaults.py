"""Broker settings that give the defaults of topic settings.

No code reads them as attributes: they are a layer under the settings of a topic (`metadata.configs`). Each is
made from its topic setting, and is moot if that one is.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from penstock.settings.checks import at_least
from penstock.settings.setting import LONG_MAX, Kind, Setting, by_name
from penstock.settings.topics import TOPIC_SETTINGS

INT, LONG = Kind.INT, Kind.LONG
_DEFAULTS = "Defaults of topic settings"


def _default(
    name: str,
    kind: Kind,
    default: str | None,
    topic: str,
    *,
    doc: str = "",
    minimum: int | None = None,
    dynamic: bool = False,
) -> Setting:
    """A setting that gives the default of a topic setting, in other units or with another default."""
    of = TOPIC_SETTINGS[topic]
    return Setting(
        name=name,
        kind=kind,
        default=default,
        doc=doc or f"The default of {topic} for topics. {of.doc}",
        check=None if minimum is None else at_least(minimum),
        scope="cluster",
        update="cluster-wide" if dynamic else "read-only",
        section=_DEFAULTS,
        moot=of.moot,
    )


_IN_OTHER_UNITS = (
    _default("log.retention.ms", LONG, None, "retention.ms", minimum=-1, dynamic=True),
    _default(
        "log.retention.minutes",
        INT,
        None,
        "retention.ms",
        minimum=-1,
        doc="How long records are kept, if log.retention.ms is not set.",
    ),
    _default(
        "log.retention.hours",
        INT,
        "168",
        "retention.ms",
        minimum=-1,
        doc="How long records are kept, if neither log.retention.ms nor log.retention.minutes is set.",
    ),
    _default("log.roll.ms", LONG, None, "segment.ms", minimum=1, dynamic=True),
    _default(
        "log.roll.hours",
        INT,
        "168",
        "segment.ms",
        minimum=1,
        doc="The longest time that one segment spans, if log.roll.ms is not set.",
    ),
    _default("log.flush.interval.ms", LONG, None, "flush.ms", dynamic=True),
    _default("log.flush.scheduler.interval.ms", LONG, str(LONG_MAX), "flush.ms"),
    _default("log.roll.jitter.ms", LONG, None, "segment.jitter.ms", dynamic=True),
    _default("log.roll.jitter.hours", INT, "0", "segment.jitter.ms", minimum=0),
)


def _defaults_of_topics() -> Iterator[Setting]:
    """The broker setting of each topic setting: the same but for its name."""
    for topic in TOPIC_SETTINGS.values():
        for name in topic.synonyms[:1]:
            yield replace(
                topic,
                name=name,
                doc=f"The default of {topic.name} for topics. {topic.doc}",
                scope="cluster",
                section=_DEFAULTS,
                synonyms=(),
                fixed=topic.fixed.replace(topic.name, name),
            )


def _throttle(name: str, doc: str) -> Setting:
    """Set by tools that move partitions, and by nobody else."""
    return Setting(
        name=name,
        kind=LONG,
        default=str(LONG_MAX),
        doc=doc,
        check=at_least(0),
        update="cluster-wide",
        section=_DEFAULTS,
        internal=True,
        moot=TOPIC_SETTINGS["leader.replication.throttled.replicas"].moot,
    )


_THROTTLES = (
    _throttle("follower.replication.throttled.rate", "The most that throttled followers copy in a second."),
    _throttle("leader.replication.throttled.rate", "The most that throttled leaders copy in a second."),
    _throttle(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "The most that is copied in a second between the directories of a broker.",
    ),
)

TOPIC_DEFAULTS: dict[str, Setting] = {
    **by_name(_defaults_of_topics()),
    **by_name(_IN_OTHER_UNITS),
    **by_name(_THROTTLES),
}

SAME_IN_OTHER_UNITS: dict[str, tuple[str, ...]] = {
    name: names
    for names in (
        ("log.roll.ms", "log.roll.hours"),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    for name in names
}
"""Settings that say the same thing in other units: the first one that is set holds."""
SAME_IN_OTHER_UNITS["log.flush.interval.ms"] = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
