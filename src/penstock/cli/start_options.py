"""The options of `penstock start`, in one table.

Starting a broker must be quick, and loading a command-line library takes longer than starting. So `parse`
reads the usual forms itself. It leaves --help, mistakes and unknown forms to the library, which is given the
same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Option(NamedTuple):
    flag: str
    metavar: str
    help: str
    setting: str = ""
    """The setting that the option stands for."""
    repeated: bool = False

    @property
    def is_flag(self) -> bool:
        """It takes no value."""
        return not self.metavar

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


OPTIONS = (
    Option("--brokers", "N", "Run N supervised brokers, ids 1 to N on consecutive ports, as one cluster."),
    Option(
        "--broker-id",
        "N",
        "Run one broker of the cluster that lives in the store, with this id.",
        "broker.id",
    ),
    Option(
        "--listen",
        "HOST:PORT",
        "The address to listen on; port 0 takes a free one. [127.0.0.1:9092]",
        "listeners",
    ),
    Option(
        "--advertise",
        "HOST:PORT",
        "The address that clients are told, if it is another one.",
        "advertised.listeners",
    ),
    Option(
        "--store",
        "DIR_OR_URL",
        "Where the cluster lives: a local directory, s3://, gs:// or az:// [./penstock-data]",
        "store",
    ),
    Option(
        "--metadata", "etcd://HOST:PORT,...", "Where the metadata log lives, if not in the store.", "metadata"
    ),
    Option(
        "--http",
        "HOST:PORT",
        "Serve the console, /metrics and /health here; port 0 takes a free one. With --brokers: consecutive "
        "ports. The console asks for a login where listeners do, /metrics for a token if metrics.token.file "
        "names one, and /health for nothing.",
        "http.address",
    ),
    Option("--rack", "R", "The rack of this broker.", "broker.rack"),
    Option(
        "--secure",
        "",
        "Serve with TLS and logins: makes certificates and an administrator on first use, and "
        "client.properties for clients.",
    ),
    Option(
        "--insecure",
        "",
        "Serve addresses that others can reach without a login.",
        "insecure.listeners.enable",
    ),
    Option(
        "--config", "FILE", "Settings as TOML, or as Kafka's server.properties if it is called *.properties."
    ),
    Option(
        "--set",
        "NAME=VALUE",
        "A setting, by Kafka's name where Kafka has it; may be repeated.",
        repeated=True,
    ),
    Option(
        "--log-level", "LEVEL", "What is logged to standard error: debug, info, warning, error. [warning]"
    ),
    Option("--log-format", "FORMAT", "How: text, or json with one event in each line. [text]"),
)

_BY_FLAG = {option.flag: option for option in OPTIONS}

Values = dict[str, list[str]]
"""By name, what was given, as often as it was."""


def parse(arguments: Sequence[str]) -> Values | None:
    """The options, if they are all of a known form; None: let the library explain."""
    values: Values = {}
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        option = _BY_FLAG.get(flag)
        if option is None:
            return None
        if option.is_flag:
            if equals and value != "true":
                return None
            value = "true"
        elif not equals:
            if not rest or rest[0].startswith("--"):
                return None
            value = rest.pop(0)
        values.setdefault(option.name, []).append(value)
    return values
