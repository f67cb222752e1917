"""DescribeCluster: brokers, controller and cluster id, without topics."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String


class DescribeClusterRequest(ApiMessage):
    api_key = 60
    min_version = 0
    max_version = 2
    flexible_from = 0

    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, "1+"] = 1
    include_fenced_brokers: Annotated[Bool, "2+"] = False


class DescribeClusterBroker(Message):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Annotated[Bool, "2+"] = False


class DescribeClusterResponse(ApiMessage):
    api_key = 60
    min_version = 0
    max_version = 2
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, "1+"] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = -0x80000000
