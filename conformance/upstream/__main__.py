"""Run the integration tests that client libraries ship in their own source packages against a running broker.

Every test of the chosen files is either selected or listed with the reason why it is not. Tests that a
package does not ship cannot be run, and the report says so.
"""

import argparse
import sys

from conformance import parts
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.target import add_against
from conformance.upstream.go import ConfluentKafkaGo, FranzGo, KafkaGo, Watermill
from conformance.upstream.python import Aiokafka, KafkaPython
from conformance.upstream.sarama import Sarama
from conformance.upstream.suite import Suite, report

SUITES: dict[str, type[Suite]] = {
    suite.name: suite
    for suite in (KafkaPython, Aiokafka, ConfluentKafkaGo, FranzGo, KafkaGo, Sarama, Watermill)
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.upstream", description=__doc__.splitlines()[0]
    )
    add_against(parser)
    parser.add_argument(
        "--suite", action="append", choices=SUITES, help="only this library's tests; may be repeated"
    )
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only tests whose name fits")
    options = parser.parse_args()
    failed = ran = 0
    missing = None
    try:
        with interrupted_cleanly():
            for name in options.suite or SUITES:
                try:
                    outcome = SUITES[name](options.only).run_against(options.against)
                except parts.PartMissing as why:
                    print(f"\n{name}: {why}")
                    missing = why
                    continue
                report(name, outcome)
                failed += len(outcome.failed)
                ran += len(outcome.passed) + len(outcome.failed)
    except ServerFailed as why:
        print(f"upstream: {why}", file=sys.stderr)
        return 2
    if missing is not None and not ran:
        return parts.not_run(missing)
    print(f"\n{ran - failed} passed, {failed} failed")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    raise SystemExit(main())
