"""The documentation is run: each command and snippet of README.md and docs/*.md, in a fresh directory for each page.

    python -m conformance.docs               all pages
    python -m conformance.docs tutorial      some of them
    python -m conformance.docs --list        what is run and what is not, with the reason

`pages.py` says how a page is read and which comments in it speak to the runner; `reference/` writes the pages that are
made from code.
"""
