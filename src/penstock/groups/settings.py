"""The settings that groups obey, under the names that Kafka gives them with dots turned to underscores."""

import msgspec

MAX_INT = 0x7FFFFFFF


class GroupSettings(msgspec.Struct, frozen=True):
    group_initial_rebalance_delay_ms: int = 3_000
    """How long the first rebalance of an empty group waits for more members."""
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = MAX_INT
    """Members that a classic group may have."""
    group_new_member_join_timeout_ms: int = 300_000
    """A member that never saw its first JoinGroup answer cannot heartbeat; it is dropped after this long."""
    group_pending_members_max: int = 10_000
    """Member ids handed out (MEMBER_ID_REQUIRED) and not used yet, per group. They cost memory until they
    expire, so their number has a limit; the next joiner is told GROUP_MAX_SIZE_REACHED."""

    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_assignment_interval_ms: int = 1_000
    """The shortest time between two assignments of one group: members that join together cause one."""
    group_consumer_max_size: int = MAX_INT
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Assignors that members may ask for; the first is used when none of them does."""
    group_consumer_migration_policy: str = "bidirectional"
    """disabled, upgrade, downgrade or bidirectional: which way a live group may change its protocol."""
    group_consumer_regex_refresh_interval_ms: int = 600_000

    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_batch_bytes_max: int = 1_048_576
    """Records of many requests share one batch up to about this size. One request is never split."""

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @property
    def upgrade_enabled(self) -> bool:
        return self.group_consumer_migration_policy in ("upgrade", "bidirectional")

    @property
    def downgrade_enabled(self) -> bool:
        return self.group_consumer_migration_policy in ("downgrade", "bidirectional")
