"""A request whose header is read only as far as its handler asks.

Key, version and correlation id stand at fixed places. The client id and where the body begins take longer to
find out, and the Produce handler usually knows them from the request before.
"""

from __future__ import annotations

from struct import Struct

from penstock.wire.exchange import Request, Session
from penstock.wire.headers import RequestHeader, parse_request_header

_unpack_header = Struct(">hhi").unpack_from


class FramedRequest(Request):
    __slots__ = ("_header",)

    def __init__(self, session: Session, frame: memoryview, owned: bool) -> None:
        self.session = session
        self.frame = frame
        self.owned = owned
        self.api_key, self.api_version, self.correlation_id = _unpack_header(frame)
        self._header: RequestHeader | None = None

    def _parsed(self) -> RequestHeader:
        header = self._header
        if header is None:
            header = self._header = parse_request_header(self.frame)
        return header

    @property
    def client_id(self) -> str | None:  # type: ignore[override]
        return self._parsed().client_id

    @property
    def body_at(self) -> int:  # type: ignore[override]
        return self._parsed().body_at
