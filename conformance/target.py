"""Penstock behind the same interface as the oracle, and the `--against` option that names either."""

import argparse
import sys
from pathlib import Path

from conformance import parts
from conformance.oracle import ApacheKafka
from conformance.server import Running, Server


class Penstock(Server):
    """One Penstock broker on a fresh directory, by the command that users run."""

    name = "Penstock"

    def __init__(self, settings: dict[str, str] | None = None, node_id: int | None = None) -> None:
        super().__init__()
        self.settings = settings or {}
        self.node_id = node_id
        self.program = parts.ROOT / ".venv" / "bin" / "penstock"
        if not self.program.exists():
            self.program = Path(sys.executable).with_name("penstock")
        if not self.program.exists():
            raise parts.PartMissing("no penstock command beside this Python: run make install first.")

    def command(self) -> list[str]:
        chosen = [f"--set={name}={value}" for name, value in self.settings.items()]
        if self.node_id is not None:
            chosen += ["--broker-id", str(self.node_id), "--advertise", self.bootstrap]
        return [
            str(self.program),
            "start",
            "--listen",
            self.bootstrap,
            "--store",
            str(self.folder / "store"),
            *chosen,
        ]


def add_against(parser: argparse.ArgumentParser, default: str = "penstock") -> None:
    parser.add_argument(
        "--against",
        default=default,
        metavar="BROKER",
        help=f"penstock, kafka ({parts.KAFKA_NEWEST}), kafka:VERSION, or HOST:PORT of a running broker "
        f"(default: {default})",
    )


def server_named(name: str, settings: dict[str, str] | None = None, node_id: int | None = None) -> Server:
    """The broker that `--against` names, not yet started; with a node id it advertises its address too."""
    if name == "penstock":
        return Penstock(settings, node_id)
    if name == "kafka":
        return ApacheKafka(settings=settings, node_id=node_id)
    if name.startswith("kafka:"):
        return ApacheKafka(name.removeprefix("kafka:"), settings, node_id)
    if ":" in name:
        return Running(name)
    raise argparse.ArgumentTypeError(f"{name!r} is not penstock, kafka, kafka:VERSION or HOST:PORT")
