"""The one table of APIs that this broker serves.

A row names the API, its versions, and the operation on a resource that a principal needs to use it.
ApiVersions, dispatch and authorisation are all computed from these rows, so what has no row is neither
advertised nor answered, and what has a row must have a handler: `handlers/<snake_name>.py`, imported on
first use. A handler module holds either

- `handle(broker, request, message) -> response | Awaitable[response]`, for ordinary APIs; or
- `handle_raw(broker, request) -> list[Buffer] | Reply | None`, where `raw` is set: the handler parses the
  frame and builds the answer itself (Produce and Fetch, for speed; ApiVersions, for its odd versions).

An ordinary module may also hold `refused(message, code) -> response`: everything that was asked for,
refused with one code. Dispatch uses it when the handler failed or the caller may not use the API.

Authorisation: where the resource is the cluster itself, dispatch asks before it decodes. Where it is
named inside the message (topics, groups, transactional ids), the handler asks
`broker.authorized(request.session, Operation.X, Resource.Y, name)` for each name.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from penstock.broker.acl import Operation, Resource


class Api(NamedTuple):
    key: int
    name: str
    """The name that the protocol gives it: "DescribeConfigs"; handler and wire modules follow from it."""
    min_version: int
    max_version: int
    operation: Operation | None
    """What a principal must be allowed to do; None: anybody may ask (ApiVersions, SASL)."""
    resource: Resource | None
    """What the operation is on. CLUSTER is checked by dispatch, anything else by the handler per name."""
    raw: bool = False
    newest: bool = False
    """The answer is about the cluster as a whole: dispatch catches up with the metadata log first."""

    @property
    def module(self) -> str:
        """describe_configs for DescribeConfigs: the file name in `handlers/` and in `wire/api/`."""
        return "".join("_" + c.lower() if c.isupper() else c for c in self.name).lstrip("_")

    def handler(self) -> Callable[..., Any]:
        """The handler function; imports its module the first time."""
        found = import_module("penstock.broker.handlers." + self.module)
        function: Callable[..., Any] = found.handle_raw if self.raw else found.handle
        return function

    def refusal(self) -> Callable[..., Any] | None:
        """The handler module's `refused(message, code)`: the whole answer with one code, if it has one."""
        found = import_module("penstock.broker.handlers." + self.module)
        function: Callable[..., Any] | None = getattr(found, "refused", None)
        return function

    def messages(self) -> tuple[type[Any], type[Any]]:
        """The request and response classes; imports their module the first time."""
        found = import_module("penstock.wire.api." + self.module)
        return getattr(found, self.name + "Request"), getattr(found, self.name + "Response")


# In order of key; one line each.
_ROWS = (
    Api(0, "Produce", 0, 13, Operation.WRITE, Resource.TOPIC, raw=True),
    Api(1, "Fetch", 0, 18, Operation.READ, Resource.TOPIC, raw=True),
    Api(2, "ListOffsets", 0, 11, Operation.DESCRIBE, Resource.TOPIC),
    Api(3, "Metadata", 0, 13, Operation.DESCRIBE, Resource.TOPIC),
    Api(8, "OffsetCommit", 0, 10, Operation.READ, Resource.GROUP),
    Api(9, "OffsetFetch", 0, 10, Operation.DESCRIBE, Resource.GROUP),
    Api(10, "FindCoordinator", 0, 6, Operation.DESCRIBE, Resource.GROUP),
    Api(11, "JoinGroup", 0, 9, Operation.READ, Resource.GROUP),
    Api(12, "Heartbeat", 0, 4, Operation.READ, Resource.GROUP),
    Api(13, "LeaveGroup", 0, 5, Operation.READ, Resource.GROUP),
    Api(14, "SyncGroup", 0, 5, Operation.READ, Resource.GROUP),
    Api(15, "DescribeGroups", 0, 6, Operation.DESCRIBE, Resource.GROUP),
    Api(16, "ListGroups", 0, 5, Operation.DESCRIBE, Resource.GROUP),
    Api(17, "SaslHandshake", 0, 1, None, None),
    Api(18, "ApiVersions", 0, 4, None, None, raw=True),
    Api(19, "CreateTopics", 0, 7, Operation.CREATE, Resource.TOPIC),
    Api(20, "DeleteTopics", 0, 6, Operation.DELETE, Resource.TOPIC),
    Api(21, "DeleteRecords", 0, 2, Operation.DELETE, Resource.TOPIC),
    Api(22, "InitProducerId", 0, 5, Operation.WRITE, Resource.TRANSACTIONAL_ID),
    Api(23, "OffsetForLeaderEpoch", 0, 4, Operation.DESCRIBE, Resource.TOPIC),
    Api(29, "DescribeAcls", 0, 3, Operation.DESCRIBE, Resource.CLUSTER),
    Api(30, "CreateAcls", 0, 3, Operation.ALTER, Resource.CLUSTER),
    Api(31, "DeleteAcls", 0, 3, Operation.ALTER, Resource.CLUSTER),
    Api(32, "DescribeConfigs", 0, 4, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, newest=True),
    Api(33, "AlterConfigs", 0, 2, Operation.ALTER_CONFIGS, Resource.TOPIC),
    Api(34, "AlterReplicaLogDirs", 0, 2, Operation.ALTER, Resource.CLUSTER, newest=True),
    Api(35, "DescribeLogDirs", 0, 5, Operation.DESCRIBE, Resource.CLUSTER, newest=True),
    Api(36, "SaslAuthenticate", 0, 2, None, None),
    Api(37, "CreatePartitions", 0, 3, Operation.ALTER, Resource.TOPIC),
    Api(42, "DeleteGroups", 0, 2, Operation.DELETE, Resource.GROUP),
    Api(43, "ElectLeaders", 0, 2, Operation.ALTER, Resource.CLUSTER),
    Api(44, "IncrementalAlterConfigs", 0, 1, Operation.ALTER_CONFIGS, Resource.TOPIC),
    Api(45, "AlterPartitionReassignments", 0, 1, Operation.ALTER, Resource.CLUSTER),
    Api(46, "ListPartitionReassignments", 0, 0, Operation.DESCRIBE, Resource.CLUSTER, newest=True),
    Api(47, "OffsetDelete", 0, 0, Operation.DELETE, Resource.GROUP),
    Api(48, "DescribeClientQuotas", 0, 1, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER),
    Api(50, "DescribeUserScramCredentials", 0, 0, Operation.DESCRIBE, Resource.CLUSTER),
    Api(55, "DescribeQuorum", 0, 2, Operation.DESCRIBE, Resource.CLUSTER),
    Api(57, "UpdateFeatures", 0, 2, Operation.ALTER, Resource.CLUSTER),
    Api(60, "DescribeCluster", 0, 2, None, None, newest=True),
    Api(61, "DescribeProducers", 0, 0, Operation.READ, Resource.TOPIC),
    Api(64, "UnregisterBroker", 0, 0, Operation.ALTER, Resource.CLUSTER),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, Operation.READ, Resource.GROUP),
    Api(69, "ConsumerGroupDescribe", 0, 1, Operation.DESCRIBE, Resource.GROUP),
    Api(74, "ListConfigResources", 0, 1, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, newest=True),
    Api(75, "DescribeTopicPartitions", 0, 0, Operation.DESCRIBE, Resource.TOPIC, newest=True),
)

APIS: dict[int, Api] = {row.key: row for row in _ROWS}
