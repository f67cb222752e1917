"""Damaged logins and damaged requests about rules, credentials, quotas and tokens, by the million.

    python -m conformance.security.fuzz [--cases N] [--seed N]

In this process: frames go through the decoder, the login and the handlers that a broker has. Over the wire a share of
them goes to a running broker by `conformance.security.handshakes`. A case fails if it raises anything but WireError,
which closes a connection; if somebody is let in who did not say a right password; if a client without rights is told
anything but a refusal; or if the log has an exception. Memory at the end must be what it was after the first tenth.
"""

import argparse
import asyncio
import hashlib
import logging
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.broker.rig import Rig
from tests.broker.test_every_version import TOPICS, Builder
from tests.broker.test_rights import codes

from conformance.wire.codec import varint
from penstock.broker.acl import REFUSED_WITH
from penstock.broker.registry import APIS
from penstock.security.credentials import Mechanism, from_salted_password
from penstock.security.rules import AccessRules
from penstock.security.sasl.exchange import Exchange
from penstock.security.sasl.oauthbearer import BearerRefused, OAuthBearer
from penstock.security.sasl.plain import Plain
from penstock.security.sasl.scram import Scram
from penstock.server.connection import Connection
from penstock.server.framed import FramedRequest
from penstock.server.login import Logins
from penstock.server.server import Server
from penstock.server.sizes import FRAME_BYTES_MIN
from penstock.wire.codec import decode, encode
from penstock.wire.errors import WireError
from penstock.wire.exchange import Session
from penstock.wire.headers import parse_response_header, request_header

USER, PASSWORD, NONCE = "alice", "wonderland", "cHJldHR5IG5vbmNl"
CREDENTIAL = from_salted_password(
    Mechanism.SCRAM_SHA_256,
    hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"salt" * 4, 4096),
    b"salt" * 4,
    4096,
)
FIRST_TOKENS = {
    "PLAIN": f"\0{USER}\0{PASSWORD}".encode(),
    "SCRAM-SHA-256": f"n,,n={USER},r=abcdef".encode(),
    "OAUTHBEARER": b"n,a=x,\x01auth=Bearer a.b.c\x01key=value\x01\x01",
}
SECOND_TOKENS = {"SCRAM-SHA-256": f"c=biws,r=abcdef{NONCE},p={'A' * 43}=".encode(), "OAUTHBEARER": b"\x01"}
APIS_OF_RULES = (29, 30, 31, 38, 39, 40, 41, 48, 49, 50, 51)
REFUSALS = {*REFUSED_WITH.values()}
SHARE_ALLOWED = 0.02
"""So many of the requests about rules come from somebody who may: each of those may be a write to the store."""
NUMBERS = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\0",
    b"\xff\xff",
    b"\x7f\xff",
    b"\0",
)
OUTCOMES: Counter[str] = Counter()
GROWTH_BYTES_MAX = 24 * 1024 * 1024


def damaged(chance: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0 if found:
                found[at % len(found)] ^= 1 << chance.randrange(8)
            case 1:
                del found[at : at + chance.randrange(1, 16)]
            case 2:
                found[at:at] = chance.randbytes(chance.randrange(1, 16))
            case 3:
                number = chance.choice(NUMBERS)
                found[at : at + len(number)] = number
            case 4:
                found += found[: chance.randrange(1, 64)]
            case 5:
                del found[at:]
    return bytes(found)


class Door:
    """A login as a connection has it, without the connection."""

    def __init__(self) -> None:
        self.logins = Logins(
            tuple(FIRST_TOKENS), self._exchange, lambda: 1_800_000_000_000, failure_delay_ms=0
        )

    def _exchange(self, mechanism: str) -> Exchange:
        if mechanism == "PLAIN":
            return Plain({USER: PASSWORD}.get)
        if mechanism == "OAUTHBEARER":
            return OAuthBearer(lambda _token, _now: BearerRefused("fuzz"))
        return Scram(Mechanism.SCRAM_SHA_256, NONCE, {USER: CREDENTIAL}.get, b"decoy")

    def case(self, chance: random.Random) -> None:
        """One connection: versions, a handshake, tokens; some of it damaged."""
        mechanism = chance.choice(tuple(FIRST_TOKENS))
        session = Session("LOGIN", "127.0.0.1")
        connection = SimpleNamespace(session=session, serve=lambda *_: None, close=lambda: None)
        server = SimpleNamespace(
            handle=lambda _request: [],
            let_in=lambda _connection: None,
            limits=SimpleNamespace(frame_bytes_max=1 << 20, failures_per_host_max=10),
        )
        login = self.logins.begin(cast(Connection, connection), cast(Server, server))
        version = chance.randrange(3)
        shake = (
            request_header(17, min(version, 1), 1, "fuzz") + len(mechanism).to_bytes(2) + mechanism.encode()
        )
        tokens = [
            FIRST_TOKENS[mechanism],
            *([SECOND_TOKENS[mechanism]] if mechanism in SECOND_TOKENS else []),
        ]
        sent = [shake]
        for token in tokens:
            spoilt = damaged(chance, token) if chance.random() < 0.7 else token
            if version == 0:
                sent.append(spoilt)
                continue
            size = varint(len(spoilt) + 1) if version == 2 else len(spoilt).to_bytes(4)
            end = b"\0" if version == 2 else b""
            sent.append(request_header(36, version, 2, "fuzz") + size + spoilt + end)
        for at, frame in enumerate(sent):
            data = damaged(chance, frame) if chance.random() < 0.2 else frame
            try:
                if session.fast is not None:
                    session.fast(memoryview(data), False)
                elif len(data) < FRAME_BYTES_MIN:
                    break
                else:
                    login.before(FramedRequest(session, memoryview(bytearray(data)), False))
            except WireError:
                OUTCOMES["logins closed"] += 1
                break
            if session.principal == f"User:{USER}" and FIRST_TOKENS["PLAIN"] not in data:
                raise AssertionError(f"somebody was let in by {sent[: at + 1]!r}")
        login.lost()
        OUTCOMES["let in" if session.principal == f"User:{USER}" else "not let in"] += 1


async def rules_case(rig: Rig, samples: dict[tuple[int, int], bytes], chance: random.Random) -> None:
    key, version = chance.choice(tuple(samples))
    allowed = chance.random() < SHARE_ALLOWED
    rig.session.principal = "User:root" if allowed else "User:nobody"
    header = request_header(key, version, 7, "fuzz")
    data = header + damaged(chance, samples[key, version])
    if chance.random() < 0.1:
        data = damaged(chance, data)
    if len(data) < 10:
        return
    request = FramedRequest(rig.session, memoryview(bytearray(data)), True)
    buffers = await rig.finished(rig.handle(request.frame, owned=True))
    OUTCOMES["requests closed" if buffers is None else "served" if allowed else "refused"] += 1
    row = APIS.get(request.api_key)
    if buffers is None or row is None or row.raw or allowed or row.whole is None:
        return
    answer = memoryview(b"".join(buffers))
    at = parse_response_header(row.key, request.api_version, answer)[1]
    found = set(codes(decode(row.messages()[1], request.api_version, answer, at)[0]))
    if found - REFUSALS - {0}:
        raise AssertionError(f"{row.name} told {found} to nobody: {data.hex()}")


class Exceptions(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(logging.Formatter().formatException(record.exc_info))


def samples() -> dict[tuple[int, int], bytes]:
    ids = {name: name.encode().ljust(16, b"*") for name in TOPICS}
    found: dict[tuple[int, int], bytes] = {}
    for key in APIS_OF_RULES:
        row = APIS[key]
        for version in range(row.min_version, row.max_version + 1):
            message: Any = Builder(ids, 2).build(row, version)
            found[key, version] = encode(message, version)
    return found


def memory_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def run(cases: int, seed: int, folder: Path) -> int:
    chance = random.Random(seed)
    log = Exceptions()
    logging.getLogger("penstock").addHandler(log)
    logging.getLogger("penstock").propagate = False
    rig = await Rig.start(
        folder,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:root",
        delegation_token_secret_key="secret",
    )
    await rig.upgrade()
    assert isinstance(rig.broker.rules, AccessRules)
    door, made = Door(), samples()
    began, settled = time.monotonic(), 0
    try:
        for number in range(cases):
            if number % 2:
                door.case(chance)
            else:
                await rules_case(rig, made, chance)
            if number % 100 == 0:
                await asyncio.sleep(0)
            if number == cases // 10:
                settled = memory_bytes()
    finally:
        await rig.close()
    grown = memory_bytes() - settled
    seconds = time.monotonic() - began
    print(
        f"seed {seed}: {cases} cases in {seconds:.0f} s, {memory_bytes() >> 20} MB, "
        f"{grown / 1048576:+.1f} MB since the first tenth, {len(log.seen)} exceptions in the log"
    )
    print(", ".join(f"{count} {what}" for what, count in sorted(OUTCOMES.items())))
    if log.seen:
        print(log.seen[0])
    return 1 if log.seen or grown > GROWTH_BYTES_MAX else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.security.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        return asyncio.run(run(options.cases, options.seed, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
