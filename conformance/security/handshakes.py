"""Crowds and rubbish at the door: half-open, slow and fuzzed handshakes, beside a healthy client.

    python -m conformance.security.handshakes [--short] [--half-open N] [--fuzz N] [--seed N]

A healthy client asks all the while, on one connection and on new ones. Its slowest answer, and the broker's memory,
are printed for each attack. The slowest answer must stay below a second, memory below 600 MB, and every hostile
connection must be closed in the end.
"""

import argparse
import contextlib
import random
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from conformance.security.stage import PASSWORD, USER, Stage, stage
from penstock.client import Client, ClientError
from penstock.settings.clients import client_security

SLOWEST_S = 1.0
MEMORY_BYTES = 600 * 1024 * 1024


class Healthy(threading.Thread):
    """Asks again and again, and each time on a new connection too."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self._stage = stage
        self._given = client_security(stage.own_properties("SCRAM-SHA-512"))
        self.slowest_s = 0.0
        self.slowest_login_s = 0.0
        self.asked = 0
        self.problem = ""
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            with Client(self._stage.login, 10.0, self._given) as client:
                while not self.stopping.wait(0.02):
                    began = time.monotonic()
                    client.metadata([])
                    asked = time.monotonic()
                    Client(self._stage.login, 10.0, self._given).close()
                    self.slowest_s = max(self.slowest_s, asked - began)
                    self.slowest_login_s = max(self.slowest_login_s, time.monotonic() - asked)
                    self.asked += 1
        except ClientError as error:
            self.problem = str(error)


def memory_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def connect(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), 10)


def first_hello() -> bytes:
    """A real ClientHello."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    shaking = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


def half_open(stage: Stage, count: int, say: bytes) -> None:
    """Connections that say this much and no more."""
    held: list[socket.socket] = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            one = connect(stage.login)
            held.append(one)
            if say:
                one.sendall(say)
    for one in held:
        one.close()


def slow(stage: Stage, count: int) -> None:
    """A byte of the hello now and then."""
    hello = first_hello()
    held = [connect(stage.login) for _ in range(count)]
    for at in range(40):
        for one in held:
            with contextlib.suppress(OSError):
                one.send(hello[at : at + 1])
        time.sleep(0.05)
    for one in held:
        one.close()


def failing_logins(stage: Stage, count: int) -> None:
    """Wrong passwords, one after the other, on the port without TLS."""
    for _ in range(count):
        with contextlib.suppress(OSError), connect(stage.naked) as one:
            one.sendall(_frame(17, 1, b"\0\5PLAIN"))
            one.recv(100)
            token = f"\0{USER}\0{PASSWORD}x".encode()
            one.sendall(_frame(36, 1, struct.pack(">i", len(token)) + token))


def oversized(stage: Stage, count: int) -> None:
    """Frames that claim to be huge, and tokens beyond the limit."""
    for _ in range(count):
        for size in (2**31 - 1, 100_000_000, 600_000, -1, 0, 3):
            with contextlib.suppress(OSError), connect(stage.naked) as one:
                one.sendall(struct.pack(">i", size) + b"\0\x11\0\1" + bytes(2000))
                one.settimeout(5)
                one.recv(10)


def fuzzed(stage: Stage, count: int, seed: int) -> None:
    """Handshakes with flipped, cut and inserted bytes, on both ports."""
    rng = random.Random(seed)
    hello = first_hello()
    logins = _frame(18, 0, b"") + _frame(17, 1, b"\0\5PLAIN") + _frame(36, 1, b"\0\0\0\6\0a\0b\0c")
    for _ in range(count):
        tls = rng.random() < 0.5
        data = bytearray(hello if tls else logins)
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randrange(1, 20)]
            elif kind == 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 20))
            else:
                data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"))
            if not data:
                data = bytearray(b"\x16")
        with contextlib.suppress(OSError), connect(stage.login if tls else stage.naked) as one:
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
            one.settimeout(0.5)
            while one.recv(4096):
                pass


def key_updates(stage: Stage) -> None:
    """Three clients that say nothing but key updates; each must be closed."""
    command = [sys.executable, "-m", "conformance.security.key_updates", stage.login, "5"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for one in running:
        said, _ = one.communicate(timeout=60)
        if one.returncode not in (0, 3):
            raise AssertionError(f"a client goes on with key updates: {said.strip()}")


def _frame(key: int, version: int, body: bytes) -> bytes:
    message = struct.pack(">hhih", key, version, 1, -1) + body
    return struct.pack(">i", len(message)) + message


@contextlib.contextmanager
def beside(stage: Stage, name: str, failures: list[str]) -> Iterator[None]:
    healthy = Healthy(stage)
    healthy.start()
    began = time.monotonic()
    yield
    time.sleep(0.5)
    healthy.stopping.set()
    healthy.join(30)
    memory = memory_bytes(stage.pid)
    figures = (
        f"{time.monotonic() - began:.1f} s, slowest answer {1000 * healthy.slowest_s:.0f} ms, slowest login "
        f"{1000 * healthy.slowest_login_s:.0f} ms, {healthy.asked} rounds, {memory // 1048576} MB"
    )
    held = (
        not healthy.problem and healthy.asked > 0 and healthy.slowest_s < SLOWEST_S and memory < MEMORY_BYTES
    )
    if not held:
        failures.append(name)
    print(f"{'held  ' if held else 'FAILED'} {name}: {figures} {healthy.problem}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--half-open", type=int)
    parser.add_argument("--fuzz", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    crowd = options.half_open or (1500 if options.short else 10_000)
    fuzz = options.fuzz or (500 if options.short else 20_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, crowd + 1000)), hard))
    failures: list[str] = []
    with stage() as ready:
        with beside(ready, "nothing", failures):
            time.sleep(1)
        with beside(ready, f"{crowd} connections that say nothing", failures):
            half_open(ready, crowd, b"")
        with beside(ready, f"{crowd} with half a hello", failures):
            half_open(ready, crowd, first_hello()[:100])
        with beside(ready, f"{crowd} with a hello and no more", failures):
            half_open(ready, crowd, first_hello())
        with beside(ready, "200 slow hellos", failures):
            slow(ready, 200)
        with beside(ready, "key updates without end", failures):
            key_updates(ready)
        with beside(ready, "failing logins", failures):
            failing_logins(ready, 100)
        with beside(ready, "oversized frames", failures):
            oversized(ready, 20)
        with beside(ready, f"{fuzz} fuzzed handshakes, seed {options.seed}", failures):
            fuzzed(ready, fuzz, options.seed)
        traces = (ready.folder / "broker.log").read_text(errors="replace").count("Traceback")
        if traces:
            failures.append("an exception in the broker's log")
            print((ready.folder / "broker.log").read_text(errors="replace")[-1500:])
    print(f"FAILED: {', '.join(failures)}" if failures else "all held")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
