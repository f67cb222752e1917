"""Apache Kafka as a single KRaft node: the peer whose answers decide."""

import subprocess

from conformance import parts
from conformance.server import Server, ServerFailed, free_port

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # The cleaner's buffer is taken at start; the default is a quarter of the small heap.
    "log.cleaner.dedupe.buffer.size": "16777216",
}


class ApacheKafka(Server):
    """One node that is broker and controller, of any version on Maven Central."""

    def __init__(
        self,
        version: str = parts.KAFKA_NEWEST,
        settings: dict[str, str] | None = None,
        node_id: int | None = None,
    ) -> None:
        super().__init__()
        self.version = version
        self.name = f"Apache Kafka {version}"
        self.extra = settings or {}
        self.node_id = node_id
        self.classpath = parts.kafka_classpath(version)
        self.properties = self.folder / "server.properties"

    def prepare(self) -> None:
        controller = free_port()
        voter = 1 if self.node_id is None else self.node_id
        settings = SETTINGS | {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self.host}:{controller}",
            "controller.quorum.voters": f"{voter}@{self.host}:{controller}",
            "log.dirs": str(self.folder / "data"),
        }
        if self.node_id is not None:
            settings |= {
                "node.id": str(self.node_id),
                "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            }
        settings |= self.extra
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        format_command = [
            *self._java(),
            "kafka.tools.StorageTool",
            "format",
            "-t",
            CLUSTER_ID,
            "-c",
            str(self.properties),
        ]
        done = subprocess.run(format_command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise ServerFailed(
                f"{self.name} could not format its folder: {done.stderr.strip() or done.stdout.strip()}"
            )

    def command(self) -> list[str]:
        return [*self._java(), "kafka.Kafka", str(self.properties)]

    def _java(self) -> list[str]:
        return parts.java(self.classpath, heap_mb=512)
