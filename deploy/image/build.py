"""Build the OCI image of Penstock without a container engine: `make image`.

    python deploy/image/build.py WHEEL ARCHIVE

Two layers, as the Containerfile beside this file makes them: Debian's essential packages with Python, made
by mmdebstrap from Debian's archive, and Penstock with its pinned dependencies, byte-compiled by that Python.
The result is an OCI archive (`skopeo copy oci-archive:ARCHIVE docker://...`, `podman load -i ARCHIVE`). It
needs root (it runs the image's own Python), mmdebstrap and uv.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SUITE = "bookworm"
PACKAGES = "ca-certificates,python3"
PYTHON = "3.11"
SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
USER, UID = "penstock", 65532
UNWANTED = ("doc", "info", "locale", "man")
"""Folders of /usr/share that nobody reads in a container, as in Debian's own slim images."""
SCRIPT = """#!/usr/bin/python3
import sys

from penstock.cli.entry import main

sys.exit(main())
"""
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def project() -> dict[str, str]:
    found: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def config(version: str, revision: str, created: str) -> dict[str, Any]:
    """What a container of this image runs, unless it is told otherwise."""
    return {
        "User": f"{UID}:{UID}",
        "ExposedPorts": {"9092/tcp": {}, "8080/tcp": {}},
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "HOME=/data"],
        "Entrypoint": ["penstock"],
        "Cmd": ["start", "--store", "/data"],
        "Volumes": {"/data": {}},
        "WorkingDir": "/data",
        "StopSignal": "SIGTERM",
        "Labels": {
            "org.opencontainers.image.title": "penstock",
            "org.opencontainers.image.description": project()["description"],
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.revision": revision,
            "org.opencontainers.image.created": created,
            "org.opencontainers.image.licenses": project()["license"],
            "org.opencontainers.image.base.name": f"debian:{SUITE}-slim",
        },
    }


# -- what is in the layers -------------------------------------------------------------------------------


def make_base(mmdebstrap: Sequence[str], target: Path) -> None:
    """Debian with Python, as a directory."""
    options = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNWANTED]
    options += ["--mode=root", "--variant=essential", f"--include={PACKAGES}"]
    # Lists and caches of apt and dpkg: nobody installs packages in this image.
    cleaning = 'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/* "$1"/var/log/* "$1"/var/lib/dpkg/*-old'
    options += [f"--customize-hook={cleaning}", "--quiet", "--format=directory"]
    run([*mmdebstrap, *options, SUITE, str(target)])


def add_application(uv: Path, wheel: Path, rootfs: Path) -> set[str]:
    """Install Penstock into the root file system; the top-level paths that are new or changed."""
    run(
        [str(uv), "pip", "install", "--quiet", "--python-version", PYTHON, "--python-platform", "linux",
         "--only-binary", ":all:", "--target", str(rootfs / SITE),
         "-c", str(ROOT / "requirements" / "user.txt"), f"penstock[otel] @ {wheel.resolve().as_uri()}"]
    )  # fmt: skip
    shutil.rmtree(
        rootfs / SITE / "bin", ignore_errors=True
    )  # Commands that begin with this machine's Python.
    # Not by time: layers have none. Nothing changes a file of an image.
    compiling = ["python3", "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    run(["chroot", str(rootfs), *compiling, "/usr/lib/python3.11", f"/{SITE}"], may_fail=True)
    script = rootfs / "usr/local/bin/penstock"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    with (rootfs / "etc/passwd").open("a") as passwd, (rootfs / "etc/group").open("a") as group:
        passwd.write(f"{USER}:x:{UID}:{UID}:Penstock:/data:/usr/sbin/nologin\n")
        group.write(f"{USER}:x:{UID}:\n")
    data = rootfs / "data"
    data.mkdir(mode=0o700)
    os.chown(data, UID, UID)
    run(["chroot", f"--userspec={UID}:{UID}", str(rootfs), "/usr/local/bin/penstock", "--version"])
    return {SITE, "usr/local/bin/penstock", "etc/passwd", "etc/group", "data"}


def layer(rootfs: Path, wanted: Iterable[str], epoch: int) -> tuple[bytes, str]:
    """These paths as a compressed layer, and the digest of what is in it."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in wanted:
            info = archive.gettarinfo(str(rootfs / path), arcname=path)
            if info is None:
                continue  # A socket, which no layer can have.
            info.mtime = min(int(info.mtime), epoch)
            info.uname = info.gname = ""
            if info.isreg():
                with (rootfs / path).open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    data = plain.getvalue()
    return gzip.compress(data, compresslevel=6, mtime=0), digest(data)


def paths_under(rootfs: Path, below: Iterable[str]) -> list[str]:
    """What is there, and in a row that is always the same."""
    found = set()
    for one in below:
        place = rootfs / one
        parents = [str(parent) for parent in Path(one).parents if str(parent) != "."]
        found.update(parents)
        found.add(one)
        if place.is_dir() and not place.is_symlink():
            for folder, names, files in os.walk(place):
                found.update(os.path.relpath(os.path.join(folder, name), rootfs) for name in (*names, *files))
    return sorted(found - {"."})


# -- the archive -----------------------------------------------------------------------------------------


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_archive(
    layers: Sequence[tuple[bytes, str]], made: dict[str, Any], target: Path, epoch: int
) -> None:
    created = made["Labels"]["org.opencontainers.image.created"]
    notes = (f"Debian {SUITE}: {PACKAGES}", "Penstock and its dependencies")
    image = {
        "created": created,
        "architecture": architecture(),
        "os": "linux",
        "config": made,
        "rootfs": {"type": "layers", "diff_ids": [plain for _, plain in layers]},
        "history": [{"created": created, "created_by": note} for note in notes],
    }
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, Any]:
        blobs[digest(data)] = data
        return {"mediaType": kind, "digest": digest(data), "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blob(CONFIG, json.dumps(image, sort_keys=True).encode()),
        "layers": [blob(LAYER, packed) for packed, _ in layers],
        "annotations": made["Labels"],
    }
    entry = blob(MANIFEST, json.dumps(manifest, sort_keys=True).encode())
    version = made["Labels"]["org.opencontainers.image.version"]
    entry["annotations"] = {"org.opencontainers.image.ref.name": version}
    files = {f"blobs/{name.replace(':', '/')}": data for name, data in blobs.items()}
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}, sort_keys=True).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w") as archive:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), epoch
            archive.addfile(info, io.BytesIO(data))


def architecture() -> str:
    return subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()


def run(command: Sequence[str], may_fail: bool = False) -> None:
    """`may_fail`: some files of Debian's Python are not meant to be compiled."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-1500:]}")


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def build(wheel: Path, archive: Path, mmdebstrap: Sequence[str], uv: Path) -> None:
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    created = datetime.fromtimestamp(epoch, UTC).isoformat()
    with tempfile.TemporaryDirectory(prefix="penstock-image-") as name:
        rootfs = Path(name) / "rootfs"
        make_base(mmdebstrap, rootfs)
        os.chmod(rootfs, 0o755)
        below = [path for path in os.listdir(rootfs) if path not in ("dev", "proc", "sys", "run", "tmp")]
        base = layer(rootfs, [*paths_under(rootfs, below), "dev", "proc", "run", "sys", "tmp"], epoch)
        added = add_application(uv, wheel, rootfs)
        own = layer(rootfs, paths_under(rootfs, added), epoch)
    made = config(project()["version"], git("rev-parse", "HEAD"), created)
    write_archive((base, own), made, archive, epoch)


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit("build.py takes a wheel and the archive to write.")
    if os.geteuid() != 0:
        raise SystemExit("The image is built by root: its own Python is run in it.")
    tool, uv = shutil.which("mmdebstrap"), shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    if tool is None:
        raise SystemExit("mmdebstrap is not on the PATH: apt-get install mmdebstrap.")
    build(Path(sys.argv[1]), Path(sys.argv[2]), [tool], Path(uv))


if __name__ == "__main__":
    main()
