"""The certificate that a listener shows, and its successor when the files change.

New connections take the context of the moment. Those that are there keep theirs. Files that cannot be used
change nothing: what was in use stays in use, one line says so, and the next change is looked at again. So a
key and its certificate need not be replaced in one stroke.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from penstock.tls import TlsError, files_of, server_context

if TYPE_CHECKING:
    import ssl

    from penstock.settings.doors import TlsSettings

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How soon a changed file is noticed."""


class Certificates:
    def __init__(self, listener: str, tls: TlsSettings) -> None:
        """TlsError if the keys or certificates cannot be used."""
        self._listener = listener
        self._tls = tls
        self._seen = _signature(files_of(tls))
        self._context = server_context(tls)

    def current(self) -> ssl.SSLContext:
        return self._context

    async def watch(self) -> None:
        """Look for changed files, for ever."""
        while files_of(self._tls):
            await asyncio.sleep(LOOK_SECONDS)
            # Files may lie on a disk that hangs.
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Take changed files up."""
        found = _signature(files_of(self._tls))
        if found == self._seen:
            return
        self._seen = found
        try:
            self._context = server_context(self._tls)
        except TlsError as error:
            log.warning("kept the certificates in use: %s; listener=%s", error, self._listener)
        else:
            log.info("took up changed certificates; listener=%s", self._listener)


def _signature(paths: tuple[str, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    """What differs when one of the files was changed or replaced."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            state = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((state.st_mtime_ns, state.st_size, state.st_ino))
    return tuple(found)
