"""The Spark session and the broker of the Spark tests, and a schema registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import broker, spark

__all__ = ["broker", "spark"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As for the Spark tests: an interrupted call to the JVM ruins all that follow."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


class FakeRegistry:
    """Answers as Confluent's registry does, to what readers ask. Paths that are not there are 404."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                answer = outer.answers.get(self.path)
                body = json.dumps(answer or {"error_code": 40403, "message": "not found"}).encode()
                self.send_response(200 if answer else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    running = FakeRegistry()
    yield running
    running.close()
