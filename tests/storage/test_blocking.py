"""The store of code that waits."""

import threading

import pytest

from penstock.storage.stores.blocking import BlockingStore
from penstock.storage.stores.objects import StoreError
from tests.leftovers import open_descriptors


def test_a_store_that_does_not_open_leaves_nothing_behind() -> None:
    """Somebody who looks again and again, as a page of the console does, would run out of descriptors."""
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    for _ in range(3):
        with pytest.raises(StoreError, match="not a store"):
            BlockingStore("nonsense://x")
    assert not set(threading.enumerate()) - threads
    assert not open_descriptors() - descriptors
