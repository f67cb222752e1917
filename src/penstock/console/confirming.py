"""What cannot be undone is typed: the name of what goes away."""

from __future__ import annotations

from penstock.client import ClientError
from penstock.console.visit import Visit

FIELD = "typed"


def require_typed(visit: Visit, name: str) -> None:
    if not name or visit.form.get(FIELD, "").strip() != name.strip():
        raise ClientError(f"Nothing was changed: type {name!r} to confirm.")
