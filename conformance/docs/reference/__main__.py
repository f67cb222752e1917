"""`make reference`: writes the pages that are made from code."""

from conformance.docs.reference.pages import PAGES, ROOT


def main() -> int:
    for name, written in PAGES.items():
        (ROOT / "docs" / name).write_text(written(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
