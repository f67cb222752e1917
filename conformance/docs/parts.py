"""What a page needs beside Penstock, put into its directory as a reader would have it there.

`fetch` runs before the page's namespaces, in which there is no network; `put` inside of them.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.docs.pages import ROOT
from conformance.packages.chart import HELM
from conformance.parts import KAFKA_NEWEST, Artifact, classpath, go_tool, java, kafka_artifacts
from conformance.s3.server import versitygw

TOOLS = {
    "connect-mirror-maker.sh": "org.apache.kafka.connect.mirror.MirrorMaker",
    "kafka-server-start.sh": "kafka.Kafka",
    "kafka-storage.sh": "kafka.tools.StorageTool",
}


def _kafka_classpath() -> str:
    mirror = Artifact("org.apache.kafka", "connect-mirror", KAFKA_NEWEST)
    artifacts = (*kafka_artifacts(KAFKA_NEWEST), mirror)
    return classpath(f"MirrorMaker 2 of Apache Kafka {KAFKA_NEWEST}", f"mirror-{KAFKA_NEWEST}", artifacts)


def _put_kafka(here: Path) -> None:
    """kafka/bin, as Kafka's archive has it: the same programs, from the same jars."""
    command = " ".join(f"'{word}'" for word in java(_kafka_classpath(), heap_mb=512))
    for tool, program in TOOLS.items():
        script = here / "kafka" / "bin" / tool
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {command} {program} "$@"\n', encoding="utf-8")
        script.chmod(0o755)


def _put_versitygw(here: Path) -> None:
    (here / "versitygw").symlink_to(versitygw())


def _put_repository(here: Path) -> None:
    """What a reader has who works in a checkout: examples and what is deployed."""
    for name in ("deploy", "examples"):
        shutil.copytree(ROOT / name, here / name)


def _put_helm(here: Path) -> None:
    """On the path of a page, as an installed program is."""
    program = here.parent / "home" / "bin" / "helm"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.symlink_to(go_tool(*HELM))


PARTS: dict[str, tuple[Callable[[], object], Callable[[Path], None]]] = {
    "kafka": (_kafka_classpath, _put_kafka),
    "versitygw": (versitygw, _put_versitygw),
    "helm": (lambda: go_tool(*HELM), _put_helm),
    "repository": (os.getcwd, _put_repository),
}
"""By the name that a page says: how it is fetched, and how it is put into the page's directory."""


def fetch(names: Sequence[str]) -> None:
    for name in names:
        PARTS[name][0]()


def put(names: Sequence[str], here: Path) -> None:
    for name in names:
        PARTS[name][1](here)
