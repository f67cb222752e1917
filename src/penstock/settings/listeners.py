"""Addresses of brokers as they are written in settings, and the protocol that each of them speaks."""

from typing import NamedTuple

from penstock.settings.setting import SettingsError


class Address(NamedTuple):
    """One listener: its name, and where it listens or is told to be."""

    name: str
    host: str
    port: int


class Protocol(NamedTuple):
    """How a listener is secured, by Kafka's name for it."""

    name: str
    tls: bool
    sasl: bool


PROTOCOLS = {
    one.name: one
    for one in (
        Protocol("PLAINTEXT", tls=False, sasl=False),
        Protocol("SSL", tls=True, sasl=False),
        Protocol("SASL_PLAINTEXT", tls=False, sasl=True),
        Protocol("SASL_SSL", tls=True, sasl=True),
    )
}


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


def parse_protocol_map(text: str) -> dict[str, Protocol]:
    """The protocol of each listener, from NAME:PROTOCOL, comma-separated."""
    protocols: dict[str, Protocol] = {}
    for part in text.split(","):
        name, colon, protocol = part.strip().partition(":")
        found = PROTOCOLS.get(protocol.strip().upper())
        if not (name and colon):
            raise SettingsError(
                f"listener.security.protocol.map has NAME:PROTOCOL, comma-separated, not {part.strip()!r}."
            )
        if found is None:
            raise SettingsError(
                f"listener.security.protocol.map gives {name.strip()} the protocol {protocol.strip()!r}, "
                f"which is none of {', '.join(PROTOCOLS)}."
            )
        if name.strip().upper() in protocols:
            raise SettingsError(f"listener.security.protocol.map names {name.strip()} twice.")
        protocols[name.strip().upper()] = found
    return protocols
