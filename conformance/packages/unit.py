"""The systemd unit: what systemd says of it, and that its times and exit codes are those of a broker.

    python -m conformance.packages.unit

`systemd-analyze` verifies it and judges how much it may do. No systemd runs it here: its command line is run instead,
with the variables that the unit sets.
"""

import configparser
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from conformance import parts
from conformance.packages.checks import Broken, clean_environment, held, run, started, write_and_read
from penstock.cli.start import REPLACED
from penstock.settings import Settings

UNIT = parts.ROOT / "deploy" / "systemd" / "penstock.service"
PENSTOCK = Path(sys.executable).with_name("penstock")
EXPOSURE_MAX = 20
"""Tenths: of 10.0, which is a service that may do everything."""
USAGE = 2


def check_systemd(folder: Path, text: str) -> None:
    if shutil.which("systemd-analyze") is None:
        raise parts.PartMissing("systemd-analyze is not on the PATH: install systemd 250 or newer.")
    place = folder / UNIT.name
    place.write_text(text.replace("/usr/local/bin/penstock", str(PENSTOCK)))
    run(["systemd-analyze", "verify", place], folder)
    held(True, "systemd-analyze verify has no complaint")
    judged: list[str | Path] = [
        "systemd-analyze",
        "security",
        "--offline=true",
        f"--threshold={EXPOSURE_MAX}",
        "--no-pager",
        place,
    ]
    said = run(judged, folder).strip().splitlines()[-1]
    held("OK" in said, said.lstrip("→ "))


def check_times(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    stop = int(service["TimeoutStopSec"])
    drain = Settings().shutdown_drain_ms / 1000
    held(stop > 2 * drain, f"it is killed after {stop} s, and drains for 2 x {drain:.0f} s at most")
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    held(
        prevented == {USAGE, REPLACED},
        "a broker that was replaced, or has wrong settings, is not started again",
    )


def check_patience(unit: configparser.ConfigParser) -> None:
    held(
        unit["Unit"]["StartLimitIntervalSec"] == "0" and int(unit["Service"]["RestartSec"]) >= 1,
        "a broker whose store is away is started again for as long as it takes",
    )


def check_command(folder: Path, text: str) -> None:
    """The command of the unit serves, with the options that it has without a file of its own."""
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    (options,) = (line for line in text.splitlines() if line.startswith('Environment="PENSTOCK_OPTIONS='))
    given = options.removeprefix('Environment="PENSTOCK_OPTIONS=').rstrip('"').replace("%S", str(folder))
    (folder / "penstock").mkdir()
    words = shlex.split(line.removeprefix("ExecStart=").replace("$PENSTOCK_OPTIONS", given))
    command: list[str | Path] = [PENSTOCK, *words[1:], "--listen", "127.0.0.1:0"]
    with started(command, folder, clean_environment(folder)) as broker:
        write_and_read(lambda *more: [PENSTOCK, *more], folder, broker.address, "orders")
    held((folder / "penstock" / "data" / "meta").is_dir(), "its data is in its state directory")


def main() -> int:
    text = UNIT.read_text()
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    try:
        with tempfile.TemporaryDirectory(prefix="conformance-unit-") as name:
            check_times(unit)
            check_patience(unit)
            check_command(Path(name), text)
            check_systemd(Path(name), text)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except Broken as why:
        print(f"FAILED: {why}")
        return 1
    print("the systemd unit is valid, and its command serves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
