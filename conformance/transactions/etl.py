"""franz-go's TestTxnEtl: chains of groups that transact, each record seen once and in order, with its chaos.

The test is the module's own. With KGO_TEST_CHAOS its clients cut each of their connections within one and a half
seconds, so that every request is now and then sent again without an answer to the first.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from conformance import parts
from conformance.groups import etl
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.transactions.places import place_named

TEST = "TestTxnEtl"
RECORDS = 100_000
RECORDS_SHORT = 5_000
TIMEOUT_S = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.transactions.etl", description=summary)
    parser.add_argument(
        "--against", default="penstock", metavar="BROKERS", help="penstock or kafka (%(default)s)"
    )
    parser.add_argument("--records", type=int, help=f"records in the chain (default: {RECORDS:,})")
    parser.add_argument("--short", action="store_true", help=f"{RECORDS_SHORT:,} records")
    parser.add_argument("--calm", action="store_true", help="without the chaos")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS")
    options = parser.parse_args(arguments)
    records = options.records or (RECORDS_SHORT if options.short else RECORDS)
    try:
        program = etl.build()
        with interrupted_cleanly(), place_named(options.against) as place:
            began = time.monotonic()
            choices = {} if options.calm else {"KGO_TEST_CHAOS": "1"}
            passed, failures, output = etl.run(
                place.bootstrap, program, records, options.timeout, TEST, choices
            )
            failures += place.problems()
    except parts.PartMissing as why:
        return parts.not_run(why)
    except ServerFailed as why:
        print(f"FAILED: {why}")
        return 1
    if failures:
        print("\n".join(output.splitlines()[-60:]))
    for test, took in passed.items():
        print(f"passed {test} {took}")
    for failure in failures:
        print(f"FAILED {failure}")
    print(
        f"{TEST} {'in calm' if options.calm else 'in chaos'} against {place.name}: {records:,} records, "
        f"{time.monotonic() - began:.0f} s, {len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
