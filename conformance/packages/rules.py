"""The alert rules of deploy/prometheus, checked by promtool.

python -m conformance.packages.rules
"""

import sys

from conformance import parts
from conformance.packages.checks import Broken, held, run

RULES = parts.ROOT / "deploy" / "prometheus" / "alerts.yml"
PROMTOOL = ("promtool", "github.com/prometheus/prometheus/cmd/promtool", "v0.315.0")


def main() -> int:
    try:
        said = run([parts.go_tool(*PROMTOOL), "check", "rules", "--lint-fatal", RULES], parts.ROOT)
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
