"""Addresses of brokers as they are written in settings."""

from typing import NamedTuple

from penstock.settings.setting import SettingsError


class Address(NamedTuple):
    """One listener: its name, and where it listens or is told to be."""

    name: str
    host: str
    port: int


def parse_listeners(text: str) -> tuple[Address, ...]:
    """Listeners from NAME://HOST:PORT, comma-separated. An IPv6 address stands in brackets."""
    listeners = []
    for part in text.split(","):
        name, _, address = part.strip().partition("://")
        host, colon, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (name and colon and port.isascii() and port.isdigit() and int(port) < 65536):
            raise SettingsError(f"A listener is NAME://HOST:PORT, not {part.strip()!r}.")
        listeners.append(Address(name.upper(), host, int(port)))
    if len({listener.name for listener in listeners}) != len(listeners):
        raise SettingsError("Two listeners have the same name.")
    return tuple(listeners)
