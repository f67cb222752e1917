"""The brokers under test, as they are started for measurement.

`conformance` starts Apache Kafka with a small heap and a light JIT, which suits short tests. Here Kafka gets
the options of its own start script, or the comparison would be unfair.
"""

import mmap
import os
import shutil
import subprocess
from pathlib import Path

from conformance.oracle import ApacheKafka
from conformance.parts import PartMissing
from conformance.server import Server
from conformance.target import Penstock

from benchmarks import build

# KAFKA_HEAP_OPTS and KAFKA_JVM_PERFORMANCE_OPTS of kafka-server-start.sh and kafka-run-class.sh.
KAFKA_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which Python does not name
# What `conformance` changes for its small heap goes back to Kafka's default.
KAFKA_DEFAULTS = {"log.cleaner.dedupe.buffer.size": "134217728"}


class MeasuredKafka(ApacheKafka):
    """Apache Kafka with the options of its own start scripts."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        super().__init__(settings=KAFKA_DEFAULTS | (settings or {}))

    def _java(self) -> list[str]:
        if shutil.which("java") is None:
            raise PartMissing("no java on the PATH: install a JDK 17 or newer.")
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        return ["java", *KAFKA_JVM, quiet, "-cp", self.classpath]


class NullBroker(Server):
    """native/null.c answers as a broker would and keeps nothing. Its figure is the limit of the clients."""

    name = "null broker"

    def __init__(self) -> None:
        super().__init__()
        self.program = build.c_program("null")

    def command(self) -> list[str]:
        return [str(self.program), self.bootstrap]


class FileBroker(NullBroker):
    """The null broker that also appends received bytes to a file: the limit of a broker that keeps
    anything."""

    name = "null broker with a file"

    def command(self) -> list[str]:
        return [*super().command(), str(self.folder / "file")]


def launch(server: Server) -> None:
    """Start the process and wait for nothing: how long it takes to serve is the measurement."""
    with server.log.open("ab") as output:
        server.process = subprocess.Popen(
            server.command(), stdout=output, stderr=subprocess.STDOUT, cwd=server.folder
        )


def touch_memory(size: int) -> None:
    """Touch and free this much memory.

    A virtual machine may get its memory from the host page by page on first use, at a few hundred megabytes a
    second. Whoever writes to fresh page cache would be charged with that, and a broker that writes nothing
    would not; memory that was just in use comes without that cost.
    """
    with mmap.mmap(-1, size) as memory:
        try:
            memory.madvise(POPULATE_WRITE)
        except OSError:  # a kernel before 5.14
            for at in range(0, size, mmap.PAGESIZE):
                memory[at] = 1


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def durability_settings(name: str, durability: str) -> dict[str, str]:
    """The settings that give this durability: `os` (page cache) or `fsync` (before each answer)."""
    if name == "penstock":
        return {"durability": durability}
    if name == "kafka" and durability == "fsync":
        return {"log.flush.interval.messages": "1"}
    return {}


def broker_named(name: str, settings: dict[str, str] | None = None) -> Server:
    """A broker that is not yet started: penstock, kafka, null or file."""
    if name == "penstock":
        return Penstock(settings)
    if name == "kafka":
        return MeasuredKafka(settings)
    return FileBroker() if name == "file" else NullBroker()
