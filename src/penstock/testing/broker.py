"""`penstock.testing.Broker`: see the package."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.testing.hosts import BrokerError, Host, ProcessHost, ThreadHost
from penstock.testing.ports import hold

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Broker", "BrokerError"]


class Broker:
    """One broker, as a context manager, synchronous or asynchronous; or by `start` and `stop`."""

    def __init__(
        self,
        *,
        store: str | Path | None = None,
        settings: Mapping[str, str | int | bool] | None = None,
        broker_id: int = 1,
        port: int = 0,
        process: bool = False,
    ) -> None:
        """`store`: where the cluster lives; a temporary directory if not given. `settings`: by the names
        that `penstock start --set` takes. `port`: 0 takes a free one, which nobody else is given until
        `close`, so that the broker can start again on it."""
        self._given_store = None if store is None else str(store)
        self._settings = {name: _text(value) for name, value in (settings or {}).items()}
        self._broker_id = broker_id
        self._port = port
        self._let_go: weakref.finalize[..., Broker] | None = None
        self._process = process
        self._temporary: str | None = None
        self._host: Host | None = None

    @property
    def store(self) -> str:
        """The directory or URL of the cluster's store."""
        store = self._given_store or self._temporary
        if store is None:
            raise BrokerError("the broker has not started")
        return store

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        if not self._port:
            raise BrokerError("the broker has not started")
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, as clients take it."""
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self._host is not None

    # -- synchronous ----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the broker, or start it again after `stop` or `kill`: on the same store and port."""
        if self._host is not None:
            raise BrokerError("the broker is running")
        if self._given_store is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="penstock-test-")
        chosen_now = not self._port
        if chosen_now:
            self._hold_port()
        settings = {
            **self._settings,
            "broker.id": str(self._broker_id),
            "listeners": f"PLAINTEXT://{self.host}:{self._port}",
            "store": self.store,
        }
        host: Host = ProcessHost(settings, self._temporary) if self._process else ThreadHost(settings)
        try:
            self._port = host.start()
        except BaseException:
            if chosen_now:
                self._port = 0
                self._release_port()
                self._remove_store()
            raise
        self._host = host
        return self

    def stop(self) -> None:
        """A controlled stop: drain, leave the cluster. The store stays until `close`."""
        host, self._host = self._host, None
        if host is not None:
            host.stop()

    def kill(self) -> None:
        """End the broker at once. Nothing is drained and nobody is told; with `process`, it is kill -9."""
        host, self._host = self._host, None
        if host is not None:
            host.kill()

    def restart(self) -> None:
        """Stop, then start on the same store and port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the store if it is a temporary one."""
        try:
            self.stop()
        finally:
            self._release_port()
            self._remove_store()

    def _hold_port(self) -> None:
        held = hold()
        if held is not None:
            self._port = held.getsockname()[1]
            self._let_go = weakref.finalize(self, held.close)

    def _release_port(self) -> None:
        if self._let_go is not None:
            self._let_go()

    def _remove_store(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- asynchronous: the same, without holding up the loop ------------------------------------------

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
