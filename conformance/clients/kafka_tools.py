"""Kafka's own command line tools: kafka-topics, kafka-console-producer, kafka-console-consumer.

The console producer takes lines of text and the console consumer prints raw bytes between separators that we
choose, so the separators are control characters which the records of the matrix do not hold in a row.
"""

import argparse
import subprocess
import tempfile

from conformance import parts
from conformance.clients.protocol import Program, Record, serve
from conformance.clients.secured import Security, arguments

FIELD = "\x1f\x1e\x1d\x1e\x1f"
PAIR = "\x1f\x1d\x1d\x1f"
COLON = "\x1e\x1d\x1d\x1e"
END = "\x1d\x1e\x1f\x1e\x1d\n"
NULL = "\x1e\x1f\x1f\x1e"
MAX_BYTES = "4194304"


class KafkaTools(Program):
    def __init__(self, bootstrap: str, security: Security) -> None:
        java, *rest = parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256)
        self.java = [java, *security.java_options(), *rest]
        self.login = tempfile.NamedTemporaryFile("w", suffix=".properties")  # noqa: SIM115 (closed by close)
        self.login.writelines(f"{name}={text}\n" for name, text in security.java().items())
        self.login.flush()
        self.shared = ["--bootstrap-server", bootstrap, "--command-config", self.login.name]

    def close(self) -> None:
        self.login.close()

    def create(self, topic: str, partitions: int) -> None:
        sizes = ["--partitions", str(partitions), "--replication-factor", "1"]
        self._run("TopicCommand", ["--create", "--topic", topic, *sizes], timeout_s=60)

    def produce(self, topic: str, partition: int, codec: str, records: list[Record]) -> list[int]:
        settings = {
            "parse.key": "true",
            "parse.headers": "true",
            "key.separator": FIELD,
            "headers.delimiter": COLON,
            "headers.separator": PAIR,
            "headers.key.separator": "=",
            "null.marker": NULL,
        }
        options = [
            option for name, value in settings.items() for option in ("--reader-property", f"{name}={value}")
        ]
        limits = ["--max-memory-bytes", "33554432", "--command-property", f"max.request.size={MAX_BYTES}"]
        acks = ["--command-property", "acks=all"]
        lines = "".join(_line(record) for record in records)
        self._run(
            "ConsoleProducer",
            ["--topic", topic, "--compression-codec", codec, *acks, *limits, *options],
            timeout_s=60,
            given=lines.encode(),
        )
        return [-1] * len(records)

    def consume(
        self, topic: str, partition: int, offset: int, count: int, timeout_s: float, committed: bool = False
    ) -> list[Record]:
        settings = {
            "print.timestamp": "true",
            "print.partition": "true",
            "print.offset": "true",
            "print.headers": "true",
            "print.key": "true",
            "key.separator": FIELD,
            "line.separator": END,
            "headers.separator": PAIR,
            "null.literal": NULL,
        }
        where = ["--topic", topic, "--partition", str(partition), "--offset", str(offset)]
        where += ["--isolation-level", "read_committed" if committed else "read_uncommitted"]
        until = ["--max-messages", str(count), "--timeout-ms", str(int(timeout_s * 1000))]
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
            for name, value in settings.items():
                escaped = "".join(f"\\u{ord(each):04x}" for each in value)
                file.write(f"{name}={escaped}\n")
            file.flush()
            output = self._run(
                "ConsoleConsumer", [*where, *until, "--formatter-config", file.name], timeout_s + 30
            )
        return [_record(line) for line in output.split(END.encode())[:-1]]

    def _run(self, tool: str, options: list[str], timeout_s: float, given: bytes = b"") -> bytes:
        command = [*self.java, f"org.apache.kafka.tools.{_home(tool)}{tool}", *self.shared, *options]
        done = subprocess.run(command, input=given, capture_output=True, timeout=timeout_s, check=False)
        if done.returncode != 0 or b"ERROR" in done.stderr:
            raise RuntimeError(
                f"{tool} ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}"
            )
        return done.stdout


def _home(tool: str) -> str:
    return "consumer." if tool == "ConsoleConsumer" else ""


def _line(record: Record) -> str:
    headers = PAIR.join(f"{name}={_text(value)}" for name, value in record.headers) or NULL
    return f"{headers}{COLON}{_text(record.key)}{FIELD}{_text(record.value)}\n"


def _text(value: bytes | None) -> str:
    return NULL if value is None else value.decode()


def _record(line: bytes) -> Record:
    stamp, partition, offset, headers, key, value = line.split(FIELD.encode())
    pairs = []
    for pair in headers.split(PAIR.encode()) if headers != b"NO_HEADERS" else []:
        name, _, text = pair.partition(b":")
        pairs.append((name.decode(), _bytes(text)))
    return Record(
        key=_bytes(key),
        value=_bytes(value),
        headers=tuple(pairs),
        timestamp=int(stamp.partition(b":")[2]),
        offset=int(offset.partition(b":")[2]),
        partition=int(partition.partition(b":")[2]),
    )


def _bytes(text: bytes) -> bytes | None:
    return None if text == NULL.encode() else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments(parser)
    options = parser.parse_args()
    serve(KafkaTools(options.bootstrap, Security.read(options.security)))


if __name__ == "__main__":
    main()
