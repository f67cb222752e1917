"""Fetch the real parts: Apache Kafka, the client programs, and the sources whose tests are run.

Everything lands in `.parts/` at the root of the repository, which git ignores, through the ordinary client of
each registry (Maven, Go, npm, pip, apt). If a part cannot be had, `PartMissing` is raised with one sentence
that says which, and why.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ROOT / ".parts"
CLIENTS = Path(__file__).resolve().parent / "clients"

KAFKA_NEWEST = "4.3.1"
# The last line that still speaks the protocol versions which Kafka 4 dropped (KIP-896).
KAFKA_OLD = "3.9.2"
SLF4J = "1.7.36"
AXE = "4.14.0"

FETCH_TIMEOUT_S = 900
BUILD_TIMEOUT_S = 3600
"""A large program of Go takes a quarter of an hour where other work has the processors."""


class PartMissing(Exception):
    """A part could not be had; the message is one sentence for the person who runs the command."""


NOT_RUN = 3
"""How a proof ends that lacks a part: it neither held nor failed."""


def not_run(why: PartMissing) -> int:
    """Say so; the exit code."""
    print(f"not run: {why}", flush=True)
    return NOT_RUN


@dataclass(frozen=True, slots=True)
class Artifact:
    """One jar on Maven Central."""

    group: str
    name: str
    version: str
    classifier: str = ""

    def dependency(self) -> str:
        fields = {"groupId": self.group, "artifactId": self.name, "version": self.version}
        if self.classifier:
            fields["classifier"] = self.classifier
        return (
            f"<dependency>{''.join(f'<{key}>{value}</{key}>' for key, value in fields.items())}</dependency>"
        )


def kafka_artifacts(version: str) -> tuple[Artifact, ...]:
    return (
        Artifact("org.slf4j", "slf4j-simple", SLF4J),  # first, so that it binds before Kafka's own choice
        Artifact("org.apache.kafka", "kafka_2.13", version),
        Artifact("org.apache.kafka", "kafka-tools", version),
    )


def kafka_classpath(version: str) -> str:
    """The Java class path of Apache Kafka's broker and tools at this version."""
    return classpath(f"Apache Kafka {version}", f"kafka-{version}", kafka_artifacts(version))


def classpath(what: str, folder: str, artifacts: Sequence[Artifact]) -> str:
    """The Java class path of these jars and of all that they need."""
    home = PARTS / folder
    listing = home / "classpath"
    if listing.exists():
        found = listing.read_text().strip()
        if all(os.path.exists(jar) for jar in found.split(os.pathsep)):
            return found
    home.mkdir(parents=True, exist_ok=True)
    (home / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>conformance</groupId>"
        f"<artifactId>kafka</artifactId><version>1</version>"
        f"<dependencies>{''.join(each.dependency() for each in artifacts)}</dependencies></project>"
    )
    fetch(what, ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={listing}"], home)
    return listing.read_text().strip()


def kafka_clients_jar(version: str) -> Path:
    """The jar that holds Kafka's message definitions at this version."""
    wanted = f"kafka-clients-{version}.jar"
    for jar in kafka_classpath(version).split(os.pathsep):
        if jar.endswith(wanted):
            return Path(jar)
    raise PartMissing(f"the class path of Apache Kafka {version} has no {wanted}.")


def java_client() -> list[str]:
    """The command that runs the Java client program."""
    classpath = kafka_classpath(KAFKA_NEWEST)
    sources = sorted((CLIENTS / "java").glob("*.java"))
    # By content: several trees may share the folder of parts, and times say nothing about what was compiled.
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    classes = PARTS / f"java-client-{digest}"
    if not (classes / "Client.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        command = ["javac", "-nowarn", "-cp", classpath, "-d", str(classes), *map(str, sources)]
        fetch("the Java client program", command, ROOT)
    return [*java(classpath + os.pathsep + str(classes), heap_mb=256), "Client"]


def java(classpath: str, heap_mb: int) -> list[str]:
    """`java` with quiet logging; the small JIT keeps short-lived tools quick on few cores."""
    if shutil.which("java") is None:
        raise PartMissing("no java on the PATH: install a JDK 17 or newer.")
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return ["java", f"-Xmx{heap_mb}m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", quiet, "-cp", classpath]


def go_program(name: str) -> Path:
    """Build the Go client program in `clients/NAME` and give its path."""
    program = PARTS / "bin" / name
    fetch(f"the Go client program {name}", ["go", "build", "-o", str(program), "."], CLIENTS / name)
    return program


def go_tool(name: str, module: str, version: str) -> Path:
    """A program of a Go module, built once in a scratch module of its own (minutes). `go install` refuses modules
    that replace others."""
    program = PARTS / "bin" / f"{name}-{version}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"conformance-{name}-build-") as folder:
            scratch = Path(folder)
            what = f"{name} {version}"
            fetch(what, ["go", "mod", "init", "scratch"], scratch)
            fetch(what, ["go", "get", f"{module}@{version}"], scratch)
            fetch(what, ["go", "build", "-o", str(program), module], scratch, BUILD_TIMEOUT_S)
    return program


def node_program(name: str) -> list[str]:
    """Install the packages of the Node program in `clients/NAME` and give the command that runs it."""
    home = PARTS / name
    source = CLIENTS / name
    lock = home / "package-lock.json"
    if not lock.exists() or lock.read_bytes() != (source / "package-lock.json").read_bytes():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        for file in ("package.json", ".npmrc"):
            shutil.copy(source / file, home / file)
        shutil.copy(source / "package-lock.json", lock)
        try:
            fetch(f"the npm packages of {name}", ["npm", "ci", "--no-fund", "--no-audit"], home)
        except PartMissing:
            lock.unlink()  # a half-made folder must not pass for an installed one next time
            raise
    shutil.copy(source / "client.js", home / "client.js")
    return ["node", str(home / "client.js")]


def kcat() -> str:
    return debian("kcat")


def chromium() -> str:
    return debian("chromium")


def debian(program: str) -> str:
    """A program from the PATH, or from Debian's package of its name when we may install it."""
    found = shutil.which(program)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        fetch(f"the package lists for {program}", ["apt-get", "update", "-q"], ROOT)
        install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", program]
        fetch(program, install, ROOT)
        found = shutil.which(program)
    if found is None:
        raise PartMissing(
            f"{program} is not on the PATH and cannot be installed here: run apt-get install {program} as root."
        )
    return found


def axe() -> str:
    """The text of axe-core, which finds what shuts people out of a page."""
    home = PARTS / f"axe-core-{AXE}"
    script = home / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        home.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-save", "--no-fund", "--no-audit", "--prefix", str(home)]
        fetch(f"axe-core {AXE}", [*command, f"axe-core@{AXE}"], home)
    return script.read_text()


def sdist(package: str, version: str) -> Path:
    """The unpacked source package of a Python project."""
    home = PARTS / "sdist"
    target = home / f"{package}-{version}"
    if not target.exists():
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", package]
        fetch(
            f"the source of {package} {version}", [*command, "-d", str(home), f"{package}=={version}"], home
        )
        archives = [path for path in home.glob("*.tar.gz") if _same_project(path.name, package, version)]
        if not archives:
            raise PartMissing(f"pip left no source archive of {package} {version} in {home}.")
        with tarfile.open(archives[0]) as archive:
            top = archive.getnames()[0].split("/")[0]
            unpack(archive, home)
        (home / top).rename(target) if top != target.name else None
    return target


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """What is in it, and nothing outside of the folder, where this Python knows that (3.11.4 and later)."""
    archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
    archive.extractall(folder)


def go_module(module: str, version: str) -> Path:
    """The folder of a Go module's source in the module cache, read-only."""
    command = ["go", "mod", "download", "-json", f"{module}@{version}"]
    out = fetch(f"the Go module {module} {version}", command, ROOT)
    for line in out.splitlines():
        name, _, value = line.strip().partition(": ")
        if name == '"Dir"':
            return Path(value.strip('",'))
    raise PartMissing(f"go did not say where it put {module} {version}.")


def _same_project(archive: str, package: str, version: str) -> bool:
    return archive.replace("_", "-").lower() == f"{package}-{version}.tar.gz".replace("_", "-").lower()


def fetch(what: str, command: Sequence[str], where: Path, seconds: float = FETCH_TIMEOUT_S) -> str:
    if shutil.which(command[0]) is None:
        raise PartMissing(f"{what} cannot be had: {command[0]} is not on the PATH.")
    try:
        done = subprocess.run(
            command, cwd=where, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise PartMissing(f"{what} cannot be had: {command[0]} took more than {seconds:.0f} s.") from late
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()
        why = "; ".join(line.strip() for line in last[-3:])
        raise PartMissing(f"{what} cannot be had: {command[0]} ended with {done.returncode}: {why}")
    return done.stdout


ALL: dict[str, Callable[[], object]] = {
    f"Apache Kafka {KAFKA_NEWEST}": lambda: kafka_classpath(KAFKA_NEWEST),
    f"Apache Kafka {KAFKA_OLD}": lambda: kafka_classpath(KAFKA_OLD),
    "Java client": java_client,
    "franz-go client": lambda: go_program("franz"),
    "Sarama client": lambda: go_program("sarama"),
    "KafkaJS client": lambda: node_program("kafkajs"),
    "kcat": kcat,
    "Chromium": chromium,
    "axe-core": axe,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.parts", description=__doc__.splitlines()[0])
    parser.parse_args()
    missing = 0
    for name, get in ALL.items():
        began = time.monotonic()
        try:
            get()
        except PartMissing as why:
            missing += 1
            print(f"{name}: missing: {why}")
        else:
            print(f"{name}: here ({time.monotonic() - began:.1f} s)")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
