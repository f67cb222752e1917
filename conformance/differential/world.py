"""One broker as the differential run sees it: a connection, and the values learned from its answers."""

import contextlib
import dataclasses
import time
from typing import Any

from conformance.differential.scenario import UNKNOWN_ID, Ref, Step
from conformance.oracle import ApacheKafka
from conformance.server import Server, ServerFailed
from conformance.wire import codec, definitions
from conformance.wire.codec import Value
from conformance.wire.connection import Closed, Connection, Silent, advertised

CLOSED = "<the connection was closed>"
SILENT = "<no answer in time>"
NOTHING = "<rightly no answer>"
UNDER_WAY = "<sent, to be answered later>"
NOT_ARRIVED = "<sent, and never seen to arrive>"
BARRIER_TOPIC = "base-barrier"
PATIENCE_S = 60.0
"""For an answer, an arrival, a change that is to be seen: it ends a run that hangs, and measures nothing."""
TOPIC_RESOURCE = 2
# Versions that 3.9 and 4.x both serve, for requests that only prepare or observe.
CREATE_TOPICS, METADATA, ALTER, DESCRIBE, PRODUCE = 5, 12, 1, 2, 8
CHANGING = {"CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs"}

Answer = Value | str


class World:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = server.name
        self.versions = advertised(server.host, server.port)
        self.connection = self.connect("")
        self.others: dict[str, Connection] = {}
        self.learned: dict[str, Any] = {}
        self.ids: dict[str, bytes] = {}
        self.names: dict[bytes, str] = {}
        self.barriers = 0
        self.started_ms = int(time.time() * 1000)

    @property
    def ports(self) -> tuple[int, ...]:
        """Where the broker may say that it is."""
        return (self.server.port,)

    def connect(self, name: str) -> Connection:
        """A new connection that is to have this name."""
        return Connection(self.server.host, self.server.port, timeout_s=PATIENCE_S)

    def topic_id(self, name: str) -> bytes:
        return self.ids.get(name, UNKNOWN_ID)

    def serves(self, api: str, version: int) -> bool:
        if isinstance(self.server, ApacheKafka) and not definitions.speaks(self.server.version, api, version):
            return False
        low, high = self.versions.get(definitions.api_keys().get(api, -1), (1, 0))
        return low <= version <= high

    def ask(self, api: str, version: int, step: Step) -> Answer:
        """Send a step's request; the decoded answer, or what happened instead of one."""
        try:
            if step.frame is not None:
                return self._ask_frame(step.frame, api, version)
            line = self.line(step.on)
            if not step.collect:
                line.send(api, version, self.resolve(step.body))
            if not step.answered:
                return self._expect_silence()
            if step.later:
                return self._await(step)
            answer = line.receive(api, version)
        except Closed:
            self.reconnect(step.on)
            return CLOSED
        except Silent:
            self.reconnect(step.on)
            return SILENT
        except codec.Malformed as why:
            self.reconnect(step.on)
            return f"<malformed: {why}>"
        if step.learn is not None:
            step.learn(self, answer)
        return answer

    def _ask_frame(self, frame: bytes, api: str, version: int) -> Answer:
        """Send a frame as it is; an answer is read as this API's, whose header is the old one."""
        self.connection.send_frame(frame)
        correlation, answer = self.connection.receive_frame()
        return {
            "Correlation": correlation,
            **codec.decode(definitions.response(api, version), version, answer[4:]),
        }

    def _expect_silence(self) -> str:
        sent = self.connection.correlation
        self.connection.send("ApiVersions", 0)
        correlation, _ = self.connection.receive_frame()
        if correlation == sent:
            self.reconnect()
            return "<an answer that nobody waits for>"
        return NOTHING

    def _await(self, step: Step) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while step.until is not None and not step.until(self):
            if time.monotonic() > deadline:
                return NOT_ARRIVED
            time.sleep(0.005)
        return UNDER_WAY

    def line(self, name: str) -> Connection:
        """The connection of this name; the first one has none."""
        if not name:
            return self.connection
        if name not in self.others:
            self.others[name] = self.connect(name)
        return self.others[name]

    def hang_up(self) -> None:
        """Close all connections but the first."""
        for connection in self.others.values():
            connection.close()
        self.others.clear()

    def reconnect(self, name: str = "") -> None:
        self.line(name).close()
        if name:
            del self.others[name]
        else:
            try:
                self.connection = self.connect("")
            except OSError as why:
                raise ServerFailed(f"{self.name} is gone ({why}):\n{self.server.tail()}") from why

    def resolve(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return value.get(self)
        if isinstance(value, dict):
            return {name: self.resolve(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.resolve(inner) for inner in value]
        return value

    def catch_up(self) -> None:
        """Wait until every change so far can be seen.

        Kafka's broker applies the metadata log some time after the controller has answered. The log is
        ordered, so a change of our own that has become visible has all earlier ones before it; twice,
        because a batch of the log becomes visible before it is fully applied.
        """
        for _ in range(2):
            self._barrier()
        with contextlib.suppress(Closed, Silent, codec.Malformed):
            answer = self.connection.call("Metadata", METADATA, {"Topics": None})
            for topic in answer["Topics"]:
                self.ids[topic["Name"]] = topic["TopicId"]
                self.names[topic["TopicId"]] = topic["Name"]

    def _barrier(self) -> None:
        self.barriers += 1
        wanted = str(604_800_000 + self.barriers)
        change = {"Name": "retention.ms", "ConfigOperation": 0, "Value": wanted}
        resource = {"ResourceType": TOPIC_RESOURCE, "ResourceName": BARRIER_TOPIC}
        asked = {"Resources": [{**resource, "ConfigurationKeys": ["retention.ms"]}]}
        deadline = time.monotonic() + PATIENCE_S
        try:
            self.connection.call(
                "IncrementalAlterConfigs", ALTER, {"Resources": [{**resource, "Configs": [change]}]}
            )
            while time.monotonic() < deadline:
                answer = self.connection.call("DescribeConfigs", DESCRIBE, asked)
                configs = answer["Results"][0]["Configs"] or []
                if any(config["Value"] == wanted for config in configs):
                    return
                time.sleep(0.002)
        except (Closed, Silent, codec.Malformed):
            self.reconnect()


def is_change(api: str, step: Step) -> bool:
    return step.catch_up or api in CHANGING


def pin(step: Step, api: str, version: int) -> tuple[str, int, Step]:
    """The step with its API and version filled in."""
    chosen, at = step.api or api, version if step.version is None else step.version
    return chosen, at, dataclasses.replace(step, api=chosen, version=at)
