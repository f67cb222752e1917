"""The pages that are made from code are current."""

import pytest
from conformance.docs.reference.pages import PAGES, ROOT


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    stored = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert stored == PAGES[name](), f"docs/{name} is stale: `make reference` writes it"
