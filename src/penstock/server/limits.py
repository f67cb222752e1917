"""Every bound on the bytes and connections that peers can make the server hold."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults suit one broker on one machine; `penstock.node` fills them from the settings."""

    frame_bytes_max: int = 104_857_600
    """Largest request: `socket.request.max.bytes`, with Kafka's default."""

    connections_max: int = 10_000
    """Connections at once over all listeners: `max.connections`. Further ones are closed on arrival."""

    connections_per_host_max: int = 2_147_483_647
    """Connections at once from one address: `max.connections.per.ip`."""

    connections_of_hosts: Mapping[str, int] = {}
    """By address, the same where it differs: `max.connections.per.ip.overrides`."""

    connection_rate_max: int = 2_147_483_647
    """Connections that may be opened in a second: `max.connection.creation.rate`. Further ones wait."""

    idle_timeout_ms: int = 600_000
    """A connection on which nothing happens for so long is closed: `connections.max.idle.ms`."""

    requests_in_flight_max: int = 500
    """Requests of one connection that may be under way together: `queued.max.requests`. Clients rarely
    pipeline more than 5; a load generator may, and group commit serves it better the more it sees."""

    memory_bytes_max: int = 134_217_728
    """Bytes held at once, over all connections: frames on their way in, requests that are not answered,
    answers that are being built, and answers that are not wholly taken. Beyond it those are held back and
    then closed who hold them and do not get on (`memory`): `queued.max.request.bytes`."""

    stalled_timeout_ms: int = 2_000
    """While memory is short, a peer that sends nothing more of a request for so long is closed."""

    paused_timeout_ms: int = 10_000
    """While memory is short, a peer is closed for whose request there was no memory for so long."""

    untaken_timeout_ms: int = 250
    """While memory is short, a peer that takes nothing of its answer for so long is closed."""

    write_buffer_bytes: int = 262_144
    """Bytes of one connection's answers that may be complete before they are given to its socket: beyond it
    they are sent, or, where one before them is not complete, none of its further requests is started."""

    backlog_bytes: int = 65_536
    """Bytes read ahead of a connection while its earlier requests hold the later ones back."""

    half_open_max: int = 6_000
    """Connections that have not shaken hands or logged in yet. Beyond it the oldest of them is closed: who is
    honest needs a moment, so the oldest is not."""

    half_open_per_host_max: int = 2_000
    """The same from one address: enough for a host that opens a thousand connections at once."""

    handshakes_max: int = 500
    """Handshakes of TLS that were begun and are not finished: each costs some 80 kB. Beyond it the oldest is
    closed. A thousand a second that take a tenth of a second each are 100 at a time."""

    half_open_timeout_ms: int = 30_000
    """A connection that has not shaken hands and logged in after so long is closed."""

    failures_per_host_max: int = 10
    """Logins of one address that may fail in ten seconds. The answers to more of them are held back
    longer."""

    accept_queue: int = 1024
    """Connections that the kernel may hold ready: `socket.listen.backlog.size`."""

    send_buffer_bytes: int = -1
    """SO_SNDBUF of connections; -1: as the system has it: `socket.send.buffer.bytes`."""

    receive_buffer_bytes: int = -1
    """SO_RCVBUF of connections; -1: as the system has it: `socket.receive.buffer.bytes`."""
