"""The wheel and the source package: built, looked into, installed into empty environments, and used there.

    python -m conformance.packages.wheel            also leaves both in dist/

An empty environment has no extras and nothing of this repository, its commands run in an empty directory without the
variables of this shell. pip, pipx and uvx install the wheel; a broker serves in under a second (the median of five
starts, from exec to the line that says so), and a client writes and reads.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

from conformance import parts
from conformance.packages.checks import Broken, clean_environment, held, run, started, write_and_read

DIST = parts.ROOT / "dist"
UV = Path(sys.executable).with_name("uv")
SERVES_WITHIN_S = 1.0
STARTS = 5
FREE_PORT = ("--listen", "127.0.0.1:0")
FIXTURE_TEST = """
from penstock.testing import Broker

def test_it(penstock_broker: Broker) -> None:
    assert penstock_broker.bootstrap_servers.startswith("127.0.0.1:")
"""


def build(target: Path) -> tuple[Path, Path]:
    """The wheel and the source package of this tree."""
    if not UV.exists():
        raise parts.PartMissing(f"uv cannot be had: there is no {UV}; run make dev.")
    shutil.rmtree(target, ignore_errors=True)
    parts.fetch("the build", [str(UV), "build", "--quiet", "--out-dir", str(target)], parts.ROOT)
    (wheel,) = target.glob("*.whl")
    (source,) = target.glob("*.tar.gz")
    return wheel, source


def project() -> dict[str, str]:
    found: dict[str, str] = tomllib.loads((parts.ROOT / "pyproject.toml").read_text())["project"]
    return found


def check_contents(wheel: Path) -> None:
    """All of the package, and nothing beside it."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(metadata).decode())
    about = metadata.partition("/")[0]
    held(
        {name.partition("/")[0] for name in names} == {"penstock", about},
        "the wheel has one package: penstock",
    )
    tracked = run(["git", "ls-files", "src/penstock"], parts.ROOT).split("\n")
    wanted = {name.removeprefix("src/") for name in tracked if name and (parts.ROOT / name).exists()}
    lost = sorted(wanted - names)
    held(
        not lost, f"all {len(wanted)} files of the package are in it{f', but not {lost[0]}' if lost else ''}"
    )
    held(f"{about}/licenses/LICENSE" in names, "the licence is in it")
    held("Programming Language :: Python :: 3" in fields.get_all("Classifier", []), "it says what it is for")


def check_description(*packages: Path) -> None:
    command: list[str | Path] = [UV, "tool", "run", "--quiet", "twine", "check", "--strict", *packages]
    said = run(command, parts.ROOT)
    held(said.count("PASSED") == len(packages), "its description renders (twine check --strict)")


def check_commands(folder: Path, penstock: Path) -> None:
    """Without the variables of this shell, in a directory that was empty."""
    environment = clean_environment(folder)
    version = project()["version"]
    said = run([penstock, "--version"], folder, environment)
    held(said.strip() == f"penstock, version {version}", f"penstock --version: {said.strip()}")
    said = run([penstock, "--help"], folder, environment)
    held(
        all(f"\n  {name} " in said for name in ("start", "topics", "doctor")),
        "penstock --help lists commands",
    )
    said = run([penstock, "completion", "bash"], folder, environment)
    held("_PENSTOCK_COMPLETE" in said, "penstock completion bash prints a script")
    print_path = "import penstock, sys; print(penstock.__file__)"
    said = run([penstock.with_name("python"), "-c", print_path], folder, environment)
    held(
        not Path(said.strip()).is_relative_to(parts.ROOT / "src"), "it is the wheel that runs, not this tree"
    )


def check_starts(folder: Path, penstock: Path) -> None:
    taken = []
    for number in range(STARTS):
        home = folder / f"start{number}"
        home.mkdir()
        environment = clean_environment(home)
        with started([penstock, "start", *FREE_PORT], home, environment) as broker:
            taken.append(broker.seconds)
            if number == 0:
                write_and_read(lambda *words: [penstock, *words], home, broker.address, "orders")
        held(
            (home / "penstock-data").is_dir(),
            f"start {number + 1}: {broker.seconds:.2f} s, data in ./penstock-data",
        )
    median = statistics.median(taken)
    held(median < SERVES_WITHIN_S, f"penstock start serves after {median:.2f} s (median of {STARTS})")


def check_fixture(folder: Path, python: Path) -> None:
    """A broker in a test: with pytest by its fixture, and without."""
    environment = clean_environment(folder)
    plain = "from penstock.testing import Broker\nwith Broker() as broker: print(broker.bootstrap_servers)"
    said = run([python, "-c", plain], folder, environment)
    held(said.startswith("127.0.0.1:"), "penstock.testing.Broker runs without pytest")
    install(python, "pytest")
    (folder / "test_it.py").write_text(FIXTURE_TEST)
    said = run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"], folder, environment)
    held("1 passed" in said, "the fixture penstock_broker is there when pytest is")


def install(python: Path, *wanted: str | Path) -> None:
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *map(str, wanted),
    ]
    parts.fetch(f"{Path(wanted[0]).name} in an empty environment", command, parts.ROOT)


def empty_environment(folder: Path) -> Path:
    """The Python of a virtual environment with nothing but pip in it."""
    run([sys.executable, "-m", "venv", folder], parts.ROOT)
    return folder / "bin" / "python"


def check_pipx(folder: Path, wheel: Path) -> None:
    """`pipx install`: the command is on the PATH, in an environment of its own."""
    python = empty_environment(folder / "pipx-itself")
    install(python, "pipx")
    homes = {
        "PIPX_HOME": str(folder / "pipx"),
        "PIPX_BIN_DIR": str(folder / "bin"),
        "PIPX_MAN_DIR": str(folder),
    }
    run([python, "-m", "pipx", "install", "--quiet", wheel], folder, {**_shell(), **homes})
    said = run([folder / "bin" / "penstock", "--version"], folder, clean_environment(folder))
    held("version" in said, "pipx install: penstock is on the PATH")


def check_uvx(folder: Path, wheel: Path) -> None:
    """`uvx --from WHEEL penstock start`."""
    command: list[str | Path] = [UV, "tool", "run", "--quiet", "--from", wheel, "penstock"]
    with started([*command, "start", *FREE_PORT], folder, _shell()) as broker:
        write_and_read(lambda *words: [*command, *words], folder, broker.address, "orders")
    held(True, f"uvx --from {wheel.name} penstock start serves")


def _shell() -> dict[str, str]:
    """The variables of this shell, which may say where packages come from, without this environment."""
    return {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}


def prove() -> None:
    wheel, source = build(DIST)
    print(f"built {wheel.name} ({wheel.stat().st_size / 1000:.0f} kB) and {source.name}", flush=True)
    check_contents(wheel)
    check_description(wheel, source)
    with tempfile.TemporaryDirectory(prefix="conformance-wheel-") as name:
        folder = Path(name)
        python = empty_environment(folder / "environment")
        install(python, wheel)
        packages = run([python, "-m", "pip", "list", "--format", "freeze"], folder).split()
        held(
            not any("spark" in one or "pytest" in one for one in packages),
            f"{len(packages)} packages with it",
        )
        empty = folder / "empty"
        empty.mkdir()
        check_commands(empty, python.with_name("penstock"))
        check_starts(empty, python.with_name("penstock"))
        check_fixture(empty, python)
        check_uvx(empty, wheel)
        check_pipx(folder, wheel)


def main() -> int:
    try:
        prove()
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (Broken, subprocess.TimeoutExpired) as why:
        print(f"FAILED: {why}")
        return 1
    print("the wheel installs with pip, pipx and uvx into an empty environment, and serves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
