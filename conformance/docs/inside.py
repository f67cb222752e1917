"""The part of the runner that is in the page's namespaces: it follows the page and prints what became of each step."""

import json
import sys
import tempfile
from pathlib import Path

from conformance.docs.pages import read
from conformance.docs.parts import put
from conformance.docs.running import Reader


def main() -> int:
    page = read(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="penstock-docs-", ignore_cleanup_errors=True) as directory:
        reader = Reader(page, Path(directory), {})
        put(page.parts, reader.here)
        steps = reader.follow()
    print(json.dumps([step.as_json() for step in steps]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
