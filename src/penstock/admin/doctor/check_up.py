"""A cluster's check-up: all checks, and a second look at what seems wrong."""

from __future__ import annotations

import time

from penstock.admin.doctor.checks import Finding, examine, lasting
from penstock.admin.doctor.questions import Address, gather
from penstock.client import ClientError, addresses
from penstock.settings.clients import OPEN_CLIENT, ClientSecurity

SECOND_LOOK_SECONDS = 3.0
"""Leaders move and brokers come and go; what is still wrong after so long is wrong."""


def check_up(bootstrap: str, security: ClientSecurity = OPEN_CLIENT) -> tuple[list[Address], list[Finding]]:
    """The brokers that were asked, and what is wrong."""
    places = addresses(bootstrap)
    picture = gather(places, security)
    if not picture.opinions:
        raise ClientError(next(iter(picture.silent.values())))
    found = examine(picture)
    if found:
        time.sleep(SECOND_LOOK_SECONDS)
        picture = gather(places, security)._replace(earlier=picture.transactions)
        found = lasting(found, examine(picture))
    return sorted(picture.opinions), found
