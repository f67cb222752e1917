"""The URLs of docs/stores.md are ones that the store takes; nothing is asked over a network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import Log
from penstock.arrow.errors import SourceError
from penstock.storage.stores.objects import StoreError
from penstock.storage.stores.opening import open_store
from penstock.storage.stores.remote import RemoteStore

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stores.md"
URLS = sorted(set(re.findall(r"(?:--store |store\.url=)'?([a-z0-9]+://[^\s'\\]+)", PAGE.read_text())))


@pytest.mark.parametrize("url", URLS)
def test_a_url_of_the_page_is_a_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert isinstance(open_store(url), RemoteStore)


def test_the_page_has_all_kinds() -> None:
    assert {url.partition("://")[0] for url in URLS} == {"s3", "gs", "az"}


def test_what_a_url_cannot_set_is_refused() -> None:
    with pytest.raises(StoreError, match="what can be set there"):
        open_store("gs://bucket/prefix?endpoint=http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://KEY:topsecret@bucket/prefix", "s3://***@bucket/prefix"),
        ("az://user:top@secret@container", "az://***@container"),
        ("abfss://user:topsecret@account.dfs.core.windows.net", "abfss://***@account.dfs.core.windows.net"),
        ("abfss://top@secret@account.dfs.core.windows.net", "abfss://***@account.dfs.core.windows.net"),
        ("s3://bucket?endpoint=http://k:topsecret@host:9", "s3://bucket?endpoint=http://***@host:9"),
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_told(url: str, told: str) -> None:
    with pytest.raises(SourceError) as refused:
        Log(url).topics()
    assert str(refused.value) == (
        f"The store {told} cannot be opened: the URL of a store has no user in it: credentials come from the"
        " environment."
    )
    with pytest.raises(StoreError, match=r"^the URL of a store has no user in it"):
        open_store(url)
