"""Pipeline prebuilt Produce frames at one running broker, read everything back, print one line per workload.

    python -m benchmarks.load 127.0.0.1:9092                   all workloads, 2 s each
    python -m benchmarks.load 127.0.0.1:9092 1K-d1 --pid PID   one, with the broker's CPU per request
    python -m benchmarks.load --start penstock --set durability=fsync   start a fresh broker (kafka, null)

A workload is SIZE-SHAPE: d5 is one connection with five requests in flight, pipe64 with 64, 8x5 eight
connections with five each. What follows `--` goes to the program itself (native/load.c lists it), for
example `-- --idempotent --partitions 8` or `-- --rate 1000 --tail`.
"""

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import build

WORKLOADS = ("1K-d1", "1K-pipe64", "1K-8x5", "16K-d5", "128K-d5", "1M-d5")


def measure(
    bootstrap: str, workload: str, seconds: float = 2.0, pid: int | None = None, extra: Sequence[str] = ()
) -> dict[str, Any]:
    """Run one workload; what the program printed, as a dictionary. A failed check raises."""
    command = [
        str(build.c_program("load")),
        f"--broker={bootstrap}",
        f"--workload={workload}",
        f"--seconds={seconds}",
    ]
    if pid is not None:
        command.append(f"--pid={pid}")
    done = subprocess.run(
        [*command, *extra], capture_output=True, text=True, timeout=seconds + 90, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"load {workload} at {bootstrap}: {done.stderr.strip() or done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def line(workload: str, result: dict[str, Any]) -> str:
    ack = result["ack_us"]
    text = (
        f"{workload:10} {result['requests_per_second']:>9,.0f} req/s"
        f" {result['megabytes_per_second']:>8.1f} MB/s"
        f"  ack p50 {ack['p50']:>8.1f} us  p99 {ack['p99']:>9.1f} us"
    )
    if "end_to_end_us" in result:
        whole = result["end_to_end_us"]
        text += f"  end to end p50 {whole['p50']:.1f} us  p99 {whole['p99']:.1f} us"
    if "broker_cpu_us_per_request" in result:
        cores = result["broker_cores"]
        text += f"  cpu {result['broker_cpu_us_per_request']:>7.1f} us/req ({cores:.2f} cores)"
    if "read_back" in result:
        text += f"  read back {result['read_back']} at {result['read_back_megabytes_per_second']:.0f} MB/s"
    if "reread_megabytes_per_second" in result:
        text += f"  reread at {result['reread_megabytes_per_second']:.0f} MB/s"
    if "reread_cpu_us_per_megabyte" in result:
        text += f", cpu {result['reread_cpu_us_per_megabyte']:.0f} us/MB"
    return text


def main(arguments: Sequence[str]) -> int:
    own, extra = list(arguments), []
    if "--" in own:
        own, extra = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("broker", nargs="?", help="HOST:PORT of a running broker")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"default: {' '.join(WORKLOADS)}")
    parser.add_argument(
        "--start", choices=("penstock", "kafka", "null", "file"), help="start this broker instead"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of --start"
    )
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--pid", type=int, help="the broker's process, to count its CPU time")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a line")
    options = parser.parse_intermixed_args(own)
    workloads = list(options.workloads)
    if options.start and options.broker:
        workloads.insert(0, options.broker)
    elif not options.start and not options.broker:
        parser.error("name a broker, HOST:PORT, or --start one")
    with contextlib.ExitStack() as stack:
        bootstrap, pid = options.broker, options.pid
        if options.start:
            from benchmarks.brokers import broker_named

            settings = dict(setting.split("=", 1) for setting in options.set)
            server = stack.enter_context(broker_named(options.start, settings))
            bootstrap, pid = server.bootstrap, server.pid
        for workload in workloads or WORKLOADS:
            result = measure(bootstrap, workload, options.seconds, pid, extra)
            print(
                json.dumps({"workload": workload} | result) if options.json else line(workload, result),
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
