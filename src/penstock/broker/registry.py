"""The one table of APIs that this broker serves.

A row names the API, its versions, the rights that it needs, and how fresh the image must be that it is
answered from. ApiVersions and dispatch are computed from these rows. So an API without a row is neither
advertised nor answered, and an API with a row must have a handler: `handlers/<snake_name>.py`, imported on
first use. A handler module holds

- `handle(broker, request, message) -> response | Awaitable[response]`; or, for speed, a `Reply` that it
  completes with an answer of its own making. If the row has rights for `items`, `handle` takes a permit too:
  `handle(broker, request, message, permit)`;
- `named(broker, message, version) -> Named | None`, if the row says KNOWN: the topics that the message names,
  None if it asks for all;
- `refused(message, code) -> response`, unless the response has one code for all: everything that was asked
  for, refused with one code. Dispatch uses it when the handler failed or the caller may not use the API.

ApiVersions alone is `raw`: `handle_raw(broker, request) -> list[Buffer]` parses its odd versions itself.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from penstock.broker.freshness import Fresh
from penstock.broker.rights import (
    ALTER_CLUSTER,
    ALTER_CLUSTER_CONFIGS,
    ALTER_GROUP_CONFIGS,
    ALTER_TOPIC,
    ALTER_TOPIC_CONFIGS,
    BE_A_BROKER,
    CREATE_TOKENS_FOR,
    CREATE_TOPIC,
    DELETE_GROUP,
    DELETE_RECORDS,
    DELETE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_CLUSTER_CONFIGS,
    DESCRIBE_EPOCHS,
    DESCRIBE_GROUP,
    DESCRIBE_GROUP_CONFIGS,
    DESCRIBE_TOKEN,
    DESCRIBE_TOKENS_OF,
    DESCRIBE_TOPIC,
    DESCRIBE_TOPIC_CONFIGS,
    DESCRIBE_TRANSACTION,
    LIST_GROUP,
    READ_GROUP,
    READ_TOPIC,
    SEE_DELETED_TOPIC,
    WRITE_IDEMPOTENTLY,
    WRITE_MARKERS,
    WRITE_TOPIC,
    WRITE_TRANSACTION,
    Right,
)


class Api(NamedTuple):
    key: int
    name: str
    """The name that the protocol gives it: "DescribeConfigs"; handler and wire modules follow from it."""
    min_version: int
    max_version: int
    whole: Right | None = None
    """Without it dispatch refuses the whole request. It is on the cluster, or on the group that the message
    names."""
    items: tuple[Right, ...] = ()
    """What single items of the message or of the answer need. The handler refuses or hides those for which
    its permit does not have it."""
    fresh: Fresh = Fresh.AT_HAND
    raw: bool = False
    parks: bool = False
    """It may wait for other clients. If such requests counted as memory, those who wait could keep out those
    whom they wait for."""

    @property
    def module(self) -> str:
        """describe_configs for DescribeConfigs: the file name in `handlers/` and in `wire/api/`."""
        return "".join("_" + c.lower() if c.isupper() else c for c in self.name).lstrip("_")

    def handler(self) -> Callable[..., Any]:
        """The handler function; imports its module the first time."""
        found = import_module("penstock.broker.handlers." + self.module)
        function: Callable[..., Any] = found.handle_raw if self.raw else found.handle
        return function

    def part(self, name: str) -> Callable[..., Any] | None:
        """A function that the handler's module may have: `refused` or `named`."""
        found = import_module("penstock.broker.handlers." + self.module)
        function: Callable[..., Any] | None = getattr(found, name, None)
        return function

    def messages(self) -> tuple[type[Any], type[Any]]:
        """The request and response classes; imports their module the first time."""
        found = import_module("penstock.wire.api." + self.module)
        return getattr(found, self.name + "Request"), getattr(found, self.name + "Response")


_DESCRIBE_CONFIGS = (DESCRIBE_TOPIC_CONFIGS, DESCRIBE_GROUP_CONFIGS, DESCRIBE_CLUSTER_CONFIGS)
_ALTER_CONFIGS = (ALTER_TOPIC_CONFIGS, ALTER_GROUP_CONFIGS, ALTER_CLUSTER_CONFIGS)
_NEWEST, _KNOWN = Fresh.NEWEST, Fresh.KNOWN
_LED = Fresh.KNOWN | Fresh.OPEN | Fresh.LED

# In order of key; one line each: key, name, versions, the right to all of it, rights to items, freshness.
# Requests to groups go to the coordinator, which sees to it that it is theirs and that they are loaded.
_ROWS = (
    Api(0, "Produce", 0, 13, None, (WRITE_TOPIC, WRITE_TRANSACTION), _KNOWN | Fresh.OPEN),
    Api(1, "Fetch", 0, 18, None, (READ_TOPIC, BE_A_BROKER), _KNOWN | Fresh.OPEN | Fresh.SURE),
    Api(2, "ListOffsets", 0, 11, None, (DESCRIBE_TOPIC,), _LED),
    Api(3, "Metadata", 0, 13, None, (DESCRIBE_TOPIC, CREATE_TOPIC, DESCRIBE_CLUSTER), _KNOWN | Fresh.SURE),
    Api(8, "OffsetCommit", 0, 10, READ_GROUP, (READ_TOPIC,), _KNOWN),
    Api(9, "OffsetFetch", 0, 10, None, (DESCRIBE_GROUP, DESCRIBE_TOPIC), _KNOWN),
    Api(
        10,
        "FindCoordinator",
        0,
        6,
        None,
        (DESCRIBE_GROUP, DESCRIBE_TRANSACTION, BE_A_BROKER),
        _NEWEST | Fresh.SURE,
    ),
    Api(11, "JoinGroup", 0, 9, READ_GROUP, parks=True),
    Api(12, "Heartbeat", 0, 4, READ_GROUP),
    Api(13, "LeaveGroup", 0, 5, READ_GROUP),
    Api(14, "SyncGroup", 0, 5, READ_GROUP, parks=True),
    Api(15, "DescribeGroups", 0, 6, None, (DESCRIBE_GROUP,)),
    Api(16, "ListGroups", 0, 5, None, (LIST_GROUP,), _NEWEST),
    Api(17, "SaslHandshake", 0, 1),
    Api(18, "ApiVersions", 0, 4, raw=True),
    Api(19, "CreateTopics", 0, 7, None, (CREATE_TOPIC, DESCRIBE_TOPIC_CONFIGS)),
    Api(20, "DeleteTopics", 0, 6, None, (DELETE_TOPIC, SEE_DELETED_TOPIC)),
    Api(21, "DeleteRecords", 0, 2, None, (DELETE_RECORDS,), _LED),
    Api(22, "InitProducerId", 0, 5, None, (WRITE_TRANSACTION, WRITE_IDEMPOTENTLY)),
    Api(23, "OffsetForLeaderEpoch", 0, 4, None, (DESCRIBE_EPOCHS,), _LED),
    Api(24, "AddPartitionsToTxn", 0, 5, None, (WRITE_TRANSACTION, WRITE_TOPIC, BE_A_BROKER), _KNOWN),
    Api(25, "AddOffsetsToTxn", 0, 4, None, (WRITE_TRANSACTION, READ_GROUP), _KNOWN),
    Api(26, "EndTxn", 0, 5, None, (WRITE_TRANSACTION,)),
    Api(27, "WriteTxnMarkers", 1, 2, WRITE_MARKERS, (), _KNOWN | Fresh.OPEN),
    Api(28, "TxnOffsetCommit", 0, 5, None, (WRITE_TRANSACTION, READ_GROUP, READ_TOPIC), _KNOWN),
    Api(29, "DescribeAcls", 0, 3, DESCRIBE_CLUSTER, (), _NEWEST),
    Api(30, "CreateAcls", 0, 3, ALTER_CLUSTER),
    Api(31, "DeleteAcls", 0, 3, ALTER_CLUSTER),
    Api(32, "DescribeConfigs", 0, 4, None, _DESCRIBE_CONFIGS, _NEWEST),
    Api(33, "AlterConfigs", 0, 2, None, _ALTER_CONFIGS),
    Api(34, "AlterReplicaLogDirs", 0, 2, ALTER_CLUSTER, (), _NEWEST),
    Api(35, "DescribeLogDirs", 0, 5, DESCRIBE_CLUSTER, (), _NEWEST),
    Api(36, "SaslAuthenticate", 0, 2),
    Api(37, "CreatePartitions", 0, 3, None, (ALTER_TOPIC,)),
    # A token is its owner's and its renewers': who may renew it or end it stands in the token.
    Api(38, "CreateDelegationToken", 1, 3, None, (CREATE_TOKENS_FOR,)),
    Api(39, "RenewDelegationToken", 1, 2),
    Api(40, "ExpireDelegationToken", 1, 2),
    Api(41, "DescribeDelegationToken", 1, 3, None, (DESCRIBE_TOKEN, DESCRIBE_TOKENS_OF), _NEWEST),
    Api(42, "DeleteGroups", 0, 2, None, (DELETE_GROUP,)),
    Api(43, "ElectLeaders", 0, 2, ALTER_CLUSTER),
    Api(44, "IncrementalAlterConfigs", 0, 1, None, _ALTER_CONFIGS),
    Api(45, "AlterPartitionReassignments", 0, 1, ALTER_CLUSTER),
    Api(46, "ListPartitionReassignments", 0, 0, DESCRIBE_CLUSTER, (), _NEWEST),
    Api(47, "OffsetDelete", 0, 0, DELETE_GROUP, (READ_TOPIC,), _KNOWN),
    Api(48, "DescribeClientQuotas", 0, 1, DESCRIBE_CLUSTER_CONFIGS, (), _NEWEST),
    Api(49, "AlterClientQuotas", 0, 1, ALTER_CLUSTER_CONFIGS),
    Api(50, "DescribeUserScramCredentials", 0, 0, DESCRIBE_CLUSTER, (), _NEWEST),
    Api(51, "AlterUserScramCredentials", 0, 0, ALTER_CLUSTER),
    Api(55, "DescribeQuorum", 0, 2, DESCRIBE_CLUSTER, (), _KNOWN | Fresh.SURE),
    Api(57, "UpdateFeatures", 0, 2, ALTER_CLUSTER),
    Api(60, "DescribeCluster", 0, 2, None, (DESCRIBE_CLUSTER,), _NEWEST),
    Api(61, "DescribeProducers", 0, 0, None, (READ_TOPIC,), _NEWEST | Fresh.OPEN | Fresh.LED),
    Api(64, "UnregisterBroker", 0, 0, ALTER_CLUSTER),
    Api(65, "DescribeTransactions", 0, 0, None, (DESCRIBE_TRANSACTION, DESCRIBE_TOPIC)),
    Api(66, "ListTransactions", 0, 2, None, (DESCRIBE_TRANSACTION,), _NEWEST),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, READ_GROUP, (DESCRIBE_TOPIC,)),
    Api(69, "ConsumerGroupDescribe", 0, 1, None, (DESCRIBE_GROUP, DESCRIBE_TOPIC)),
    Api(74, "ListConfigResources", 0, 1, DESCRIBE_CLUSTER_CONFIGS, (), _NEWEST),
    Api(75, "DescribeTopicPartitions", 0, 0, None, (DESCRIBE_TOPIC,), _NEWEST),
)

APIS: dict[int, Api] = {row.key: row for row in _ROWS}
