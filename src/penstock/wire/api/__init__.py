"""One module per API, named after it; each has its request and its response."""

from importlib import import_module

from penstock.wire.schema import ApiMessage

API_MODULES = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    8: "offset_commit",
    9: "offset_fetch",
    10: "find_coordinator",
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    15: "describe_groups",
    16: "list_groups",
    17: "sasl_handshake",
    18: "api_versions",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    23: "offset_for_leader_epoch",
    24: "add_partitions_to_txn",
    25: "add_offsets_to_txn",
    26: "end_txn",
    27: "write_txn_markers",
    28: "txn_offset_commit",
    29: "describe_acls",
    30: "create_acls",
    31: "delete_acls",
    32: "describe_configs",
    33: "alter_configs",
    34: "alter_replica_log_dirs",
    35: "describe_log_dirs",
    36: "sasl_authenticate",
    37: "create_partitions",
    38: "create_delegation_token",
    39: "renew_delegation_token",
    40: "expire_delegation_token",
    41: "describe_delegation_token",
    42: "delete_groups",
    43: "elect_leaders",
    44: "incremental_alter_configs",
    45: "alter_partition_reassignments",
    46: "list_partition_reassignments",
    47: "offset_delete",
    48: "describe_client_quotas",
    49: "alter_client_quotas",
    50: "describe_user_scram_credentials",
    51: "alter_user_scram_credentials",
    55: "describe_quorum",
    57: "update_features",
    60: "describe_cluster",
    61: "describe_producers",
    64: "unregister_broker",
    65: "describe_transactions",
    66: "list_transactions",
    68: "consumer_group_heartbeat",
    69: "consumer_group_describe",
    74: "list_config_resources",
    75: "describe_topic_partitions",
}
"""Module by API key, of those that a broker serves or a client of ours asks for. A module is imported when
somebody asks for it."""


def request_class(api_key: int) -> type[ApiMessage]:
    return _message_class(api_key, "Request")


def response_class(api_key: int) -> type[ApiMessage]:
    return _message_class(api_key, "Response")


def api_name(api_key: int) -> str:
    """Kafka's name of an API, such as ListOffsets."""
    return "".join(word.capitalize() for word in API_MODULES[api_key].split("_"))


def _message_class(api_key: int, suffix: str) -> type[ApiMessage]:
    module = import_module(f"penstock.wire.api.{API_MODULES[api_key]}")
    cls: type[ApiMessage] = getattr(module, api_name(api_key) + suffix)
    return cls
