"""Every page of the documentation can be read by the runner, and the light ones do what they say.

`python -m conformance.docs` runs all of them, with Spark, Kafka's tools and an S3 server.
"""

import pytest
from conformance.docs.isolation import Unable, run
from conformance.docs.pages import Page, paths, read

PAGES = [read(path) for path in paths()]
LIGHT = [page for page in PAGES if page.steps and not page.heavy]


@pytest.mark.parametrize("page", LIGHT, ids=lambda page: page.name)
def test_a_page_does_what_it_says(page: Page) -> None:
    try:
        steps = run(page)
    except Unable as why:
        pytest.skip(str(why))
    assert [f"{page.path.name}:{step.line}: {step.problem}" for step in steps if step.problem] == []


def test_what_is_not_run_has_a_reason_that_can_be_read() -> None:
    blocks = [block for page in PAGES for block in page.blocks]
    left_out = [block for block in blocks if block.reason]
    assert all(len(block.reason.split()) >= 4 for block in left_out)
    assert len(left_out) * 4 < len(blocks)
