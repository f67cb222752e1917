"""The settings that coordinators of groups obey, and those that single groups have (KIP-848)."""

import msgspec
from msgspec.structs import replace

from penstock.settings.checks import at_least, list_of, one_of_any_case
from penstock.settings.setting import INT_MAX, Kind, Rows, Setting

STRING, INT, SHORT, LONG, LIST = Kind.STRING, Kind.INT, Kind.SHORT, Kind.LONG, Kind.LIST

row = Rows("cluster", "read-only")


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a broker's settings that groups know."""

    row.section("Groups")

    group_initial_rebalance_delay_ms: int = row(
        INT,
        3000,
        "How long a new group waits for more members before its first assignment.",
        at_least(0),
    )
    group_min_session_timeout_ms: int = row(
        INT, 6000, "The shortest session time-out a classic member may ask for.", at_least(1)
    )
    group_max_session_timeout_ms: int = row(
        INT,
        1800000,
        "The longest session time-out a classic member may ask for.",
        at_least(1),
    )
    group_max_size: int = row(INT, INT_MAX, "How many members a classic group may have.", at_least(1))
    group_consumer_session_timeout_ms: int = row(
        INT,
        45000,
        "How long a member of the consumer protocol may be silent before it is removed.",
        at_least(1),
    )
    group_consumer_min_session_timeout_ms: int = row(
        INT,
        45000,
        "The shortest session time-out that a group's own setting may choose.",
        at_least(1),
    )
    group_consumer_max_session_timeout_ms: int = row(
        INT,
        60000,
        "The longest session time-out that a group's own setting may choose.",
        at_least(1),
    )
    group_consumer_heartbeat_interval_ms: int = row(
        INT,
        5000,
        "How often members of the consumer protocol are asked to heartbeat.",
        at_least(1),
    )
    group_consumer_min_heartbeat_interval_ms: int = row(
        INT,
        5000,
        "The shortest heartbeat interval that a group's own setting may choose.",
        at_least(1),
    )
    group_consumer_max_heartbeat_interval_ms: int = row(
        INT,
        15000,
        "The longest heartbeat interval that a group's own setting may choose.",
        at_least(1),
    )
    group_consumer_assignment_interval_ms: int = row(
        INT,
        1000,
        "The shortest time between two assignments of one group of the consumer protocol.",
        at_least(0),
    )
    group_consumer_min_assignment_interval_ms: int = row(
        INT,
        0,
        "The shortest assignment interval that a group's own setting may choose.",
        at_least(0),
    )
    group_consumer_max_assignment_interval_ms: int = row(
        INT,
        15000,
        "The longest assignment interval that a group's own setting may choose.",
        at_least(0),
    )
    group_consumer_max_size: int = row(
        INT,
        INT_MAX,
        "How many members a group of the consumer protocol may have.",
        at_least(1),
    )
    group_consumer_assignors: str = row(
        LIST,
        "uniform,range",
        "The server-side assignors offered; the first is the default.",
        list_of("uniform", "range", empty=False),
    )
    group_consumer_migration_policy: str = row(
        STRING,
        "bidirectional",
        "Which way groups may move between the classic and the consumer protocol.",
        one_of_any_case("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
    )
    group_consumer_regex_refresh_interval_ms: int = row(
        INT,
        600000,
        "How often regular expressions are matched again with the topics that exist.",
        at_least(10000),
        internal=True,
    )
    offsets_topic_num_partitions: int = row(
        INT,
        50,
        "Partitions of `__consumer_offsets`; fixed once the topic exists.",
        at_least(1),
    )
    offsets_topic_replication_factor: int = row(
        SHORT,
        3,
        "Length of the failover order of `__consumer_offsets`, as far as there are brokers.",
        at_least(1),
    )
    offsets_topic_segment_bytes: int = row(
        INT, 104857600, "Segment size of `__consumer_offsets`.", at_least(1)
    )
    offsets_retention_minutes: int = row(
        INT, 10080, "How long committed offsets of an empty group are kept.", at_least(1)
    )
    offsets_retention_check_interval_ms: int = row(
        LONG, 600000, "How often expired offsets are looked for.", at_least(1)
    )
    offset_metadata_max_bytes: int = row(
        INT, 4096, "The longest text that may be committed with an offset.", at_least(0)
    )

    group_new_member_join_timeout_ms: int = 300_000
    """A member that never saw its first JoinGroup answer cannot heartbeat; it is dropped after this long.
    As the next two, it is nobody's to set."""
    group_pending_members_max: int = 10_000
    """Member ids handed out (MEMBER_ID_REQUIRED) and not used yet, per group. They cost memory until they
    expire, so their number has a limit; the next joiner is told GROUP_MAX_SIZE_REACHED."""
    offsets_batch_bytes_max: int = 1_048_576
    """Records of many requests share one batch up to about this size. One request is never split."""

    @property
    def assignors(self) -> tuple[str, ...]:
        return tuple(self.group_consumer_assignors.split(","))

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @property
    def upgrade_enabled(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("upgrade", "bidirectional")

    @property
    def downgrade_enabled(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("downgrade", "bidirectional")


COORDINATOR_SETTINGS: dict[str, Setting] = row.named(
    GroupSettings,
    besides=("group_new_member_join_timeout_ms", "group_pending_members_max", "offsets_batch_bytes_max"),
)

_OF_ONE_GROUP = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
)


def _own(name: str) -> Setting:
    brokers = f"group.{name}"
    of_all = COORDINATOR_SETTINGS[brokers]
    return replace(of_all, name=name, scope="group", update="cluster-wide", section="", synonyms=(brokers,))


GROUP_SETTINGS: dict[str, Setting] = {name: _own(name) for name in _OF_ONE_GROUP}
"""A group's own, each over the broker setting of the same kind."""
