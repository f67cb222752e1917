"""Programs of Debian that are unpacked, not installed: the machine stays as it is."""

import os
import shutil
from pathlib import Path

from conformance import parts

HOME = parts.PARTS / "debian"


def debian(*packages: str) -> Path:
    """The root of these packages, unpacked. Their libraries must be named among them."""
    root = HOME / "root"
    downloads = HOME / "packages"
    downloads.mkdir(parents=True, exist_ok=True)
    for package in packages:
        done = HOME / f"{package}.done"
        if done.exists():
            continue
        for old in downloads.glob(f"{package}_*.deb"):
            old.unlink()
        parts.fetch(f"Debian's {package}", ["apt-get", "download", "-q", package], downloads)
        (archive,) = downloads.glob(f"{package}_*.deb")
        parts.fetch(f"Debian's {package}", ["dpkg", "-x", str(archive), str(root)], downloads)
        done.touch()
    return root


def environment(root: Path) -> dict[str, str]:
    """Variables with which programs of that root find each other and their libraries."""
    libraries = ":".join(str(path) for path in sorted((root / "usr/lib").glob("*-linux-gnu*")))
    path = f"{root / 'usr/bin'}:{root / 'usr/sbin'}:{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, "LD_LIBRARY_PATH": libraries}


def program(name: str, *packages: str) -> tuple[str, dict[str, str]]:
    """A program of this machine, or else of Debian's packages, and the variables to run it with."""
    found = shutil.which(name)
    if found is not None:
        return found, dict(os.environ)
    root = debian(*packages)
    for folder in ("usr/bin", "usr/sbin"):
        if (root / folder / name).exists():
            return str(root / folder / name), environment(root)
    raise parts.PartMissing(f"Debian's package {packages[0]} has no program {name}.")
