"""Turns the settings of a broker into those of its parts."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from penstock.log.policy import LogPolicy
from penstock.metadata.configs import TopicConfigs
from penstock.metadata.image import Listener
from penstock.security.addresses import canonical
from penstock.security.quotas import CONNECTIONS, QuotaTable
from penstock.server.limits import Limits
from penstock.settings import Settings, parse_listeners
from penstock.settings.checks import host_limits
from penstock.storage.partitions.settings import CleanerSettings, LedgerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.metadata.image import ClusterImage
    from penstock.server.server import Bound


def advertised(settings: Settings, bound: tuple[Bound, ...]) -> tuple[Listener, ...]:
    """What clients are told: the advertised address of each listener, else the one it listens on.

    A port of 0 stands for the one that the system chose; an address that means "all of them" is told as
    the name of this machine, because clients cannot connect to it.
    """
    told = {}
    if settings.advertised_listeners:
        told = {one.name: one for one in parse_listeners(settings.advertised_listeners)}
    listeners = []
    for listener, actual in zip(parse_listeners(settings.listeners), bound, strict=True):
        given = told.get(listener.name, listener)
        host = given.host
        if host in ("", "0.0.0.0", "::"):
            host = socket.gethostname()
        listeners.append(Listener(given.name, host, given.port or actual.port))
    return tuple(listeners)


def limits_of(settings: Settings) -> Limits:
    return Limits(
        frame_bytes_max=settings.socket_request_max_bytes,
        connections_max=settings.max_connections,
        connections_per_host_max=settings.max_connections_per_ip,
        connections_of_hosts={
            canonical(host): limit
            for host, limit in host_limits(settings.max_connections_per_ip_overrides).items()
        },
        connection_rate_max=settings.max_connection_creation_rate,
        idle_timeout_ms=settings.connections_max_idle_ms,
        requests_in_flight_max=settings.queued_max_requests,
        memory_bytes_max=settings.queued_max_request_bytes,
        accept_queue=settings.socket_listen_backlog_size,
        send_buffer_bytes=settings.socket_send_buffer_bytes,
        receive_buffer_bytes=settings.socket_receive_buffer_bytes,
    )


def rate_of_host(image: ClusterImage) -> Callable[[str], float | None] | None:
    """How many connections in a second an address may open; None if there are no such quotas."""
    if not image.quotas:
        return None
    table = QuotaTable(image.quotas)
    return table.connection_rate if table.has(CONNECTIONS) else None


def ledger_settings(settings: Settings) -> LedgerSettings:
    return LedgerSettings(
        tail_cache_bytes=settings.tail_cache_bytes,
        index_cache_bytes=settings.segment_cache_bytes,
        settle_bytes=settings.wal_settle_bytes,
        settle_interval_ms=settings.wal_settle_interval_ms,
        retention_check_interval_ms=settings.log_retention_check_interval_ms,
        delete_delay_ms=settings.log_segment_delete_delay_ms,
    )


class Policies:
    """The settings that the log obeys, as of an image, for the ledger."""

    def __init__(self, settings: Settings) -> None:
        self._configs = TopicConfigs(settings.broker_id, settings.given)
        self._settings = settings

    def of(self, image: ClusterImage, topic: str) -> LogPolicy:
        config = self._configs.get(image, topic)
        return LogPolicy(
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            delete=config.delete,
            compact=config.compact,
            min_cleanable_ratio=config.min_cleanable_dirty_ratio,
            min_compaction_lag_ms=config.min_compaction_lag_ms,
            max_compaction_lag_ms=config.max_compaction_lag_ms,
            delete_retention_ms=config.delete_retention_ms,
            log_append_time=config.log_append_time,
            file_delete_delay_ms=config.file_delete_delay_ms,
            producer_expiration_ms=self._settings.at(image).producer_id_expiration_ms,
        )

    def cleaner(self, image: ClusterImage) -> CleanerSettings:
        settings = self._settings.at(image)
        return CleanerSettings(
            enable=settings.log_cleaner_enable,
            backoff_ms=settings.log_cleaner_backoff_ms,
            dedupe_buffer_bytes=settings.log_cleaner_dedupe_buffer_size,
            io_bytes_per_second=settings.log_cleaner_io_max_bytes_per_second,
        )
