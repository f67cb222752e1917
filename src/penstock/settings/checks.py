"""The values that a setting takes, beyond its type. Problems are told in Kafka's words."""

from collections.abc import Callable
from typing import NamedTuple

Value = bool | int | float | str | tuple[str, ...]


class Fault(NamedTuple):
    """What is wrong with a part of a value: the part as it is shown, and the sentence about it."""

    shown: str
    problem: str


class Check(NamedTuple):
    problem: Callable[[Value], str | Fault | None]
    """Why a setting cannot have the value. "{name}" stands for the setting's name."""
    words: str
    """The values that it can have, for people."""
    repeats: bool = False
    """Of lists: a part may be there more than once."""


def at_least(minimum: int) -> Check:
    def problem(value: Value) -> str | None:
        assert isinstance(value, int | float)
        return None if value >= minimum else f"Value must be at least {minimum}"

    return Check(problem, f"at least {minimum}")


def between(minimum: int, maximum: int) -> Check:
    def problem(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value < minimum:
            return f"Value must be at least {minimum}"
        return None if value <= maximum else f"Value must be no more than {maximum}"

    return Check(problem, f"{minimum} to {maximum}")


def between_or(minimum: int, maximum: int, other: int) -> Check:
    def problem(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if minimum <= value <= maximum or value == other:
            return None
        return f"Value must be between {minimum} and {maximum} or equal to {other}"

    return Check(problem, f"{minimum} to {maximum}, or {other}")


def one_of(*allowed: str) -> Check:
    def problem(value: Value) -> str | None:
        return None if value in allowed else f"String must be one of: {', '.join(allowed)}"

    return Check(problem, f"one of {', '.join(allowed)}")


def one_of_any_case(*allowed: str) -> Check:
    def problem(value: Value) -> str | None:
        if isinstance(value, str) and value.upper() in allowed:
            return None
        return f"String must be one of (case insensitive): {', '.join(allowed)}"

    return Check(problem, f"one of {', '.join(allowed).lower()}")


def list_of(*allowed: str, empty: bool = True) -> Check:
    """A list without empty parts, of `allowed` ones."""

    def problem(value: Value) -> str | Fault | None:
        assert isinstance(value, tuple)
        if not value and not empty:
            return f"Configuration '{{name}}' must not be empty. Valid values include: [{', '.join(allowed)}]"
        for part in value:
            if not part:
                return "Configuration '{name}' values must not be empty."
            if part not in allowed:
                return Fault(part, f"String must be one of: {', '.join(allowed)}")
        return None

    return Check(problem, f"any of {', '.join(allowed)}" if empty else f"some of {', '.join(allowed)}")


def _replicas_problem(value: Value) -> Fault | None:
    assert isinstance(value, tuple)
    if "".join(value) == "*" or all(_is_replica(part) for part in value):
        return None
    return Fault(
        f"[{', '.join(value)}]",
        "{name} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    )


THROTTLED_REPLICAS = Check(_replicas_problem, "PARTITION:BROKER each, or *", repeats=True)


def _is_replica(part: str) -> bool:
    partition, colon, broker = part.partition(":")
    return not part or bool(colon and _is_digits(partition) and _is_digits(broker))


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def host_limits(text: str) -> dict[str, int]:
    """The limits of addresses. ValueError if the text says none."""
    limits = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, limit = part.rpartition(":")
        host = host.strip("[]")
        if not (colon and _is_digits(limit) and _is_address(host)):
            raise ValueError(part)
        limits[host] = int(limit)
    return limits


def _is_address(host: str) -> bool:
    """A name would match no connection: those have addresses."""
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_limits_problem(value: Value) -> str | None:
    try:
        host_limits(str(value))
    except ValueError as error:
        return f"{error} is not ADDRESS:LIMIT"
    return None


HOST_LIMITS = Check(_host_limits_problem, "ADDRESS:LIMIT each")


def _web_address_problem(value: Value) -> str | None:
    if not value:
        return None
    text = str(value)
    if not text.startswith(("http://", "https://")):
        return "String must begin with http:// or https://"
    if _host_part(text) is None:
        return "String must name a host, and a port from 1 to 65535 or none"
    return None


def _host_part(url: str) -> str | None:
    """What a URL says about its host: user, name and port. None if there is no host or no such port."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        return parts.netloc if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


WEB_ADDRESS = Check(_web_address_problem, "empty, or http://... or https://...")


def _store_problem(value: Value) -> str | None:
    scheme, separator, rest = str(value).partition("://")
    if not value:
        return "String must be a directory or a URL"
    if not separator or scheme == "memory":
        return None
    if scheme in ("etcd", "etcds"):
        return "The metadata log may be in etcd (--metadata), and records may not"
    if scheme not in STORE_SCHEMES:
        return "A store is a directory, or a URL that begins with s3://, gs:// or az://"
    return None if rest.strip("/") or scheme == "file" else "The URL names no bucket"


STORE_SCHEMES = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
STORE = Check(_store_problem, "a directory, or s3://..., gs://..., az://...")


def _metadata_problem(value: Value) -> str | None:
    if not value or str(value).startswith(("etcd://", "etcds://")):
        return None
    return "The metadata log is kept in the store, or in etcd at etcd://HOST:PORT"


METADATA = Check(_metadata_problem, "empty, or etcd://... or etcds://...")


def is_place(url: str) -> bool:
    """Whether something can be fetched from a URL. With a user in it nothing can: it would be taken for a
    part of the host's name, and the password be asked for in the DNS."""
    if url.startswith(("http://", "https://")):
        return "@" not in (_host_part(url) or "@")
    return url.startswith("file:")
