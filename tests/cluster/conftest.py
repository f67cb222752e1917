from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.cluster.health import logs
from tests.cluster.ward import Ward


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers in this process are never in the middle of a flush while somebody else has the loop."""
    monkeypatch.setattr(logs, "_PAUSE_SECONDS", 0.0)


@pytest.fixture(params=["directory", "memory"])
async def ward(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ward]:
    made = Ward(request.param, tmp_path)
    yield made
    await made.kill()
