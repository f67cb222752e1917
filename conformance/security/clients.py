"""Each mechanism with each client that has it: records go in and come back; a wrong secret is refused.

    python -m conformance.security.clients [--short] [--client NAME ...]

Each client logs in with PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER over SASL_SSL and over SASL_PLAINTEXT, and
with a certificate over SSL. It makes a topic, writes records and reads them as a member of a group. With a guess, a token
that is over or a certificate that a stranger vouches for it must be refused, and must say so within 15 seconds. Then all
of them stay in groups where a login lasts for a few seconds: they must miss nothing, and those that can log in anew on
an open connection must keep theirs. --short: fewer doors, and no Java.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from conformance import parts
from conformance.client import BY_NAME, Client, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.security.again import logins_again
from conformance.security.stage import MECHANISMS, Stage, own_properties, stage
from conformance.server import interrupted_cleanly

COUNT = 5
REFUSED_MAX_S = 15.0
DOORS = (
    *(("SASL_SSL", mechanism) for mechanism in MECHANISMS),
    *(("SASL_PLAINTEXT", mechanism) for mechanism in MECHANISMS),
    ("SSL", ""),
)
SHORT_DOORS = (("SASL_SSL", "SCRAM-SHA-512"), ("SASL_PLAINTEXT", "PLAIN"), ("SSL", ""))
OWN = "penstock"
SHORT = ("confluent-kafka", "kafka-python", "aiokafka", "franz-go", "sarama", "sarama-0.10.2", "kafkajs", OWN)
ALL = (*SHORT, "java")
LACKS = frozenset({("sarama-0.10.2", "OAUTHBEARER")})
"""Sarama has OAUTHBEARER with SaslHandshake 1 alone, and at this version it says 0."""

NO_SESSIONS = frozenset((OWN, "sarama-0.10.2"))
"""Those that do not stay, and those that SaslHandshake 0 does not tell how long a login lasts."""
AT_ONCE = 4

Proof = Callable[[Stage, str, str], str]
"""Stage, protocol and mechanism; why it did not hold, or nothing."""


def address(ready: Stage, protocol: str) -> str:
    return {"SASL_SSL": ready.login, "SASL_PLAINTEXT": ready.naked, "SSL": ready.mutual}[protocol]


def reads_back(client: Client, ready: Stage, protocol: str, mechanism: str) -> str:
    topic = f"{client.name}-{protocol}-{mechanism}"
    file = ready.security(protocol, mechanism).write(ready.folder / f"{topic}.json")
    sent = [Record(None, b"%d" % number) for number in range(COUNT)]
    with Session(client, address(ready, protocol), file) as session:
        session.create(topic, 1)
        session.produce(topic, 0, "none", sent)
        found, committed = session.group(topic, topic, COUNT, COUNT, "classic")
    values = [record.value for record in found]
    if values != [record.value for record in sent] or committed != {0: COUNT}:
        return f"read {values}, committed {committed}"
    return ""


def is_refused(client: Client, ready: Stage, protocol: str, mechanism: str) -> str:
    file = ready.security(protocol, mechanism, right=False).write(ready.folder / f"{client.name}-wrong.json")
    with Session(client, address(ready, protocol), file) as session:
        with contextlib.suppress(ClientFailed):
            session.step("nothing")  # it is refused, and the program has started
        began = time.monotonic()
        try:
            session.create(f"{client.name}-refused", 1)
        except ClientFailed:
            return _in_time(began)
    return "was let in"


def _in_time(began: float) -> str:
    took_s = time.monotonic() - began
    return "" if took_s < REFUSED_MAX_S else f"was refused after {took_s:.1f} s"


def own_reads_back(ready: Stage, protocol: str, mechanism: str) -> str:
    """Penstock's own commands."""
    topic = f"{OWN}-{protocol}-{mechanism}"
    lines = b"".join(b"%d\n" % number for number in range(COUNT))
    _command(ready, protocol, mechanism, ["produce", topic], given=lines)
    out = _command(ready, protocol, mechanism, ["consume", topic, "--max", str(COUNT)])
    return "" if out == lines else f"read {out!r}"


def own_is_refused(ready: Stage, protocol: str, mechanism: str) -> str:
    began = time.monotonic()
    try:
        _command(ready, protocol, mechanism, ["topics", "list"], right=False)
    except ClientFailed:
        return _in_time(began)
    return "was let in"


def _command(
    ready: Stage,
    protocol: str,
    mechanism: str,
    arguments: Sequence[str],
    right: bool = True,
    given: bytes = b"",
) -> bytes:
    file = ready.folder / "own.properties"
    told = own_properties(ready.security(protocol, mechanism, right))
    file.write_text("".join(f"{name}={text}\n" for name, text in told.items()))
    shared = ["--bootstrap", address(ready, protocol), "--command-config", str(file)]
    command = [sys.executable, "-m", "penstock", *arguments, *shared]
    done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)
    if done.returncode:
        raise ClientFailed(done.stderr.decode().strip())
    return done.stdout


def proofs_of(name: str) -> tuple[Proof, Proof]:
    if name == OWN:
        return own_reads_back, own_is_refused
    client = BY_NAME[name]
    return partial(reads_back, client), partial(is_refused, client)


def held(what: str, proof: Callable[[], str]) -> bool:
    began = time.monotonic()
    try:
        why = proof()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:400]
    print(f"{'FAILED' if why else 'held  '} {what} ({time.monotonic() - began:.1f} s) {why}", flush=True)
    return not why


def at_hand(names: Sequence[str]) -> tuple[list[str], parts.PartMissing | None]:
    """Build or fetch the programs, so that nobody is timed with it; those that there are, and what is missing."""
    found: list[str] = []
    lacking = None
    for name in names:
        try:
            if name != OWN:
                BY_NAME[name].program()
            found.append(name)
        except parts.PartMissing as missing:
            lacking = missing
    return found, lacking


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer doors, and no Java")
    parser.add_argument("--client", action="append", choices=ALL, help="this one alone; may be repeated")
    options = parser.parse_args()
    chosen, lacking = at_hand(options.client or (SHORT if options.short else ALL))
    doors = SHORT_DOORS if options.short else DOORS
    again = ("SCRAM-SHA-512",) if options.short else ("SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
    # Most of them mostly wait: a few at once.
    with interrupted_cleanly(), stage() as ready, ThreadPoolExecutor(AT_ONCE) as pool:
        parted = [pool.submit(all_doors, name, ready, doors) for name in chosen]
        results = [result for one in parted for result in one.result()]
        for mechanism in again:
            able = [name for name in chosen if name not in NO_SESSIONS]
            for name, why in logins_again(ready, able, mechanism).items():
                results.append(held(f"{name} stays longer than its login, {mechanism}", partial(str, why)))
    failures = results.count(False)
    print(f"{len(results) - failures} held, {failures} failed")
    if failures:
        return 1
    return 0 if lacking is None else parts.not_run(lacking)


def all_doors(name: str, ready: Stage, doors: Sequence[tuple[str, str]]) -> list[bool]:
    right, wrong = proofs_of(name)
    results = []
    for protocol, mechanism in doors:
        if (name, mechanism) not in LACKS:
            door = " ".join(filter(None, (name, protocol, mechanism)))
            results.append(held(door, partial(right, ready, protocol, mechanism)))
            results.append(held(f"{door}, wrongly", partial(wrong, ready, protocol, mechanism)))
    return results


if __name__ == "__main__":
    sys.exit(main())
