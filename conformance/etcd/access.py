"""Users and passwords of etcd, and an etcd whose space is used up."""

import asyncio
import os
from typing import Any

from conformance.etcd.server import Etcd
from penstock.storage.stores.etcd import EtcdStore, parse_url
from penstock.storage.stores.etcd_gateway import Credentials, Gateway
from penstock.storage.stores.objects import StoreError

USERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("user/add", {"name": "root", "password": "root"}),
    ("role/add", {"name": "root"}),
    ("user/grant", {"user": "root", "role": "root"}),
    ("user/add", {"name": "penstock", "password": "secret"}),
    ("role/add", {"name": "ours"}),
    # Keys from "ours/" up to "ours0".
    (
        "role/grant",
        {"name": "ours", "perm": {"permType": "READWRITE", "key": "b3Vycy8=", "range_end": "b3VyczA="}},
    ),
    ("user/grant", {"user": "penstock", "role": "ours"}),
    ("enable", {}),
)


async def _try(url: str, user: str = "", password: str = "", size: int = 1) -> str:
    """What became of a create: "created", or the kind of error."""
    # Patient: on a slow machine, a refusal after an attempt that was not answered leaves a create in doubt.
    gateway = Gateway(
        parse_url(url)[1], credentials=Credentials(user=user, password=password), attempt_seconds=5.0
    )
    store = EtcdStore(url, gateway=gateway)
    try:
        return "created" if await store.create(os.urandom(6).hex(), os.urandom(size)) else "there"
    except StoreError as error:
        return type(error).__name__
    finally:
        await store.close()


async def _access(users: str, small: str) -> list[str]:
    gateway = Gateway(parse_url(users)[1])
    for path, message in USERS:
        await gateway.ask(f"/v3/auth/{path}", message)
    await gateway.close()
    cases = {
        "nobody": (await _try(f"{users}/ours"), "StoreRefusedError"),
        "a wrong password": (await _try(f"{users}/ours", "penstock", "wrong"), "StoreRefusedError"),
        "a user": (await _try(f"{users}/ours", "penstock", "secret", 2_000_000), "created"),
        "a user elsewhere": (await _try(f"{users}/theirs", "penstock", "secret"), "StoreRefusedError"),
        "too much": (await _try(small, size=40_000_000), "StoreFullError"),
        "when it is full": (await _try(small), "StoreFullError"),
    }
    print("access: " + ", ".join(f"{name}: {found}" for name, (found, _wanted) in cases.items()))
    return [f"{name} got {found}, not {wanted}" for name, (found, wanted) in cases.items() if found != wanted]


def run_access() -> list[str]:
    with Etcd(1) as users, Etcd(1, "--quota-backend-bytes", "16777216") as small:
        return asyncio.run(_access(users.url, small.url))
