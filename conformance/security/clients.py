"""Each mechanism with each client that has it: records go in and come back; a wrong secret is refused.

    python -m conformance.security.clients [--short]

--short: the clients that are Python packages. Else Kafka's own command line tools, too (needs Java, Maven).
"""

import argparse
import asyncio
import logging
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from conformance import parts
from conformance.security.stage import MECHANISMS, PASSWORD, USER, Stage, stage

COUNT = 5
SECONDS = 20.0


def with_confluent(stage: Stage, mechanism: str, password: str) -> list[bytes]:
    from confluent_kafka import Consumer, KafkaError, Producer

    given: dict[str, Any] = {
        "bootstrap.servers": stage.login,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "ssl.ca.location": stage.ca,
        "logger": logging.getLogger("quiet"),
    }
    if mechanism == "OAUTHBEARER":
        token = stage.token() if password == PASSWORD else stage.token(exp=int(time.time()) - 300)
        given["oauth_cb"] = lambda _: (token, time.time() + 300)
    else:
        given |= {"sasl.username": USER, "sasl.password": password}
    refused: list[KafkaError] = []
    producer = Producer({**given, "error_cb": refused.append})
    topic = f"confluent-{mechanism}"
    for number in range(COUNT):
        producer.produce(topic, b"%d" % number)
    left = COUNT
    deadline = time.monotonic() + SECONDS
    while (
        left
        and time.monotonic() < deadline
        and not any(e.code() == KafkaError._AUTHENTICATION for e in refused)
    ):
        left = producer.flush(0.5)
    if left:
        producer.purge()
        raise PermissionError(str(refused[-1] if refused else "nothing was acknowledged"))
    consumer = Consumer({**given, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < COUNT and time.monotonic() < deadline:
        record = consumer.poll(0.5)
        if record is not None and record.error() is None:
            found.append(record.value() or b"")
    consumer.close()
    return found


def with_kafka_python(stage: Stage, mechanism: str, password: str) -> list[bytes]:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError

    given: dict[str, Any] = {
        "bootstrap_servers": stage.login,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": stage.ca,
        "sasl_mechanism": mechanism,
        "bootstrap_timeout_ms": 3000,
    }
    if mechanism == "OAUTHBEARER":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        text = stage.token() if password == PASSWORD else stage.token(exp=int(time.time()) - 300)

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                return text

        given["sasl_oauth_token_provider"] = Provider()
    else:
        given |= {"sasl_plain_username": USER, "sasl_plain_password": password}
    topic = f"kafka-python-{mechanism}"
    try:
        producer = KafkaProducer(**given, max_block_ms=8000)
        for number in range(COUNT):
            producer.send(topic, b"%d" % number).get(10)
        producer.close()
    except KafkaError as error:
        raise PermissionError(str(error)) from error
    consumer = KafkaConsumer(topic, **given, auto_offset_reset="earliest", consumer_timeout_ms=8000)
    found: list[bytes] = []
    for record in consumer:
        found.append(record.value)
        if len(found) == COUNT:
            break
    consumer.close()
    return found


def with_aiokafka(stage: Stage, mechanism: str, password: str) -> list[bytes]:
    return asyncio.run(_with_aiokafka(stage, mechanism, password))


async def _with_aiokafka(stage: Stage, mechanism: str, password: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider
    from aiokafka.errors import KafkaError

    given: dict[str, Any] = {
        "bootstrap_servers": stage.login,
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=stage.ca),
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        text = stage.token() if password == PASSWORD else stage.token(exp=int(time.time()) - 300)

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            async def token(self) -> str:
                return text

        given["sasl_oauth_token_provider"] = Provider()
    else:
        given |= {"sasl_plain_username": USER, "sasl_plain_password": password}
    topic = f"aiokafka-{mechanism}"
    producer = AIOKafkaProducer(**given)
    try:
        await producer.start()
        for number in range(COUNT):
            await producer.send_and_wait(topic, b"%d" % number)
    except KafkaError as error:
        raise PermissionError(str(error)) from error
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(topic, **given, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(SECONDS):
            return [(await consumer.getone()).value for _ in range(COUNT)]
    finally:
        await consumer.stop()


def with_penstock(stage: Stage, mechanism: str, password: str) -> list[bytes]:
    file = stage.folder / "own.properties"
    text = stage.own_properties(mechanism, password)
    if mechanism == "OAUTHBEARER":
        stage.token_file.write_text(
            stage.token() if password == PASSWORD else stage.token(exp=int(time.time()) - 300)
        )
    file.write_text("".join(f"{name}={value}\n" for name, value in text.items()))
    shared = ["--bootstrap", stage.login, "--command-config", str(file)]
    topic = f"penstock-{mechanism}"
    lines = b"".join(b"%d\n" % number for number in range(COUNT))
    _command(["produce", topic, *shared], lines)
    out = _command(["consume", topic, "--max", str(COUNT), *shared])
    return out.split()


def _command(arguments: list[str], given: bytes = b"") -> bytes:
    command = [sys.executable, "-m", "penstock", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=60)
    if done.returncode:
        raise PermissionError(done.stderr.decode().strip())
    return done.stdout


def with_java(stage: Stage, mechanism: str, password: str) -> list[bytes]:
    java = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{stage.token_file}"
    allowed_files = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={stage.token_file}"
    if mechanism == "OAUTHBEARER":
        stage.token_file.write_text(
            stage.token() if password == PASSWORD else stage.token(exp=int(time.time()) - 300)
        )
    file = stage.folder / "client.properties"
    given = stage.properties(mechanism, password) | {
        "default.api.timeout.ms": "15000",
        "request.timeout.ms": "10000",
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    topic = f"java-{mechanism}"
    tools = [java[0], allowed, allowed_files, *java[1:]]
    make = ["--create", "--topic", topic, "--command-config", str(file)]
    _java([*tools, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", stage.login, *make])
    lines = b"".join(b"%d\n" % number for number in range(COUNT))
    write = ["--topic", topic, "--command-config", str(file)]
    _java(
        [*tools, "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", stage.login, *write], lines
    )
    read = ["--topic", topic, "--from-beginning", "--max-messages", str(COUNT), "--command-config", str(file)]
    out = _java(
        [*tools, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", stage.login, *read]
    )
    return out.split()


def _java(command: list[str], given: bytes = b"") -> bytes:
    done = subprocess.run(["nice", *command], input=given, capture_output=True, check=False, timeout=90)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise PermissionError(" ".join(said.split())[-400:])
    return done.stdout


PYTHON: dict[str, Callable[[Stage, str, str], list[bytes]]] = {
    "confluent-kafka": with_confluent,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
    "penstock": with_penstock,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--client", help="this one alone")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    chosen = dict(PYTHON)
    lacking = None
    if not options.short:
        try:
            parts.kafka_classpath(parts.KAFKA_NEWEST)
            chosen["java"] = with_java
        except parts.PartMissing as missing:
            lacking = missing
    if options.client:
        chosen = {options.client: chosen[options.client]}
    failures = 0
    with stage() as ready:
        for name, client in chosen.items():
            for mechanism in MECHANISMS:
                right = partial(_read_back, client, ready, mechanism)
                wrong = partial(_refused, client, ready, mechanism)
                failures += not _held(f"{name} {mechanism}", right)
                failures += not _held(f"{name} {mechanism}, a wrong secret", wrong)
    if failures:
        print(f"FAILED: {failures}")
        return 1
    return 0 if lacking is None else parts.not_run(lacking)


def _read_back(client: Callable[[Stage, str, str], list[bytes]], ready: Stage, mechanism: str) -> bool:
    return client(ready, mechanism, PASSWORD) == [b"%d" % number for number in range(COUNT)]


def _refused(client: Callable[[Stage, str, str], list[bytes]], ready: Stage, mechanism: str) -> bool:
    try:
        client(ready, mechanism, "a guess")
    except PermissionError:
        return True
    return False


def _held(what: str, proof: Callable[[], bool]) -> bool:
    began = time.monotonic()
    try:
        held, why = proof(), ""
    except Exception as error:
        held, why = False, f"{type(error).__name__}: {error}"[:300]
    print(f"{'held  ' if held else 'FAILED'} {what} ({time.monotonic() - began:.1f} s) {why}", flush=True)
    return held


if __name__ == "__main__":
    sys.exit(main())
