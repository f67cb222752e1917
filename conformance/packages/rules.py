"""The alert rules of deploy/prometheus, checked by promtool: the machine's, or else Debian's, or else one built by Go,
which takes many minutes.

python -m conformance.packages.rules
"""

import os
import sys

from conformance import parts
from conformance.packages.checks import Broken, held, run
from conformance.packages.tools import program

RULES = parts.ROOT / "deploy" / "prometheus" / "alerts.yml"
PROMTOOL = ("promtool", "github.com/prometheus/prometheus/cmd/promtool", "v0.315.0")


def promtool() -> tuple[str, dict[str, str]]:
    """The program, and the variables to run it with."""
    try:
        return program("promtool", "prometheus")
    except parts.PartMissing:
        return str(parts.go_tool(*PROMTOOL)), dict(os.environ)


def main() -> int:
    try:
        command, environment = promtool()
        said = run([command, "check", "rules", "--lint-fatal", RULES], parts.ROOT, environment)
        held("SUCCESS" in said, f"promtool: {said.strip().splitlines()[-1].strip()}")
    except parts.PartMissing as why:
        return parts.not_run(why)
    except Broken as why:
        print(f"FAILED: {why}")
        return 1
    print("Prometheus takes the alert rules")
    return 0


if __name__ == "__main__":
    sys.exit(main())
