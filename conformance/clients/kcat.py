"""kcat: one run of the command for everything that its options can say at once.

It reads with `-J`, whose strings carry the record's bytes unchanged (only quotes, backslashes and control
characters are escaped). So the output is taken as Latin-1 and nothing is lost. It writes one file a record,
because kcat takes arbitrary bytes only so, or a line that holds a key alone, since kcat skips empty values.
kcat makes topics only by asking for them, and has no option for timestamps.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from conformance import parts
from conformance.clients.protocol import Program, Record, serve
from conformance.clients.secured import Security, arguments

KEY_END = b"\x1d"


class Kcat(Program):
    def __init__(self, bootstrap: str, security: Security) -> None:
        self.base = [parts.kcat(), "-b", bootstrap, "-X", "broker.address.family=v4"]
        for name, text in security.librdkafka().items():
            self.base += ["-X", f"{name}={text}"]

    def create(self, topic: str, partitions: int) -> None:
        self._run(["-L", "-t", topic, "-X", "allow.auto.create.topics=true"], 30)

    def produce(self, topic: str, partition: int, codec: str, records: list[Record]) -> list[int]:
        with tempfile.TemporaryDirectory() as folder:
            for at, run in enumerate(_runs(records)):
                options = self._produce_options(topic, partition, codec, run[0])
                if not run[0].value:
                    lines = b"".join((record.key or b"") + KEY_END + b"\n" for record in run)
                    self._run([*options, "-K", KEY_END], 30, given=lines)
                    continue
                files = [Path(folder) / f"{at}-{number}" for number in range(len(run))]
                for file, record in zip(files, run, strict=True):
                    file.write_bytes(record.value or b"")
                self._run([*options, *files], 30)
        return [-1] * len(records)

    def _produce_options(self, topic: str, partition: int, codec: str, record: Record) -> list[Any]:
        options: list[Any] = ["-P", "-t", topic, "-p", str(partition), "-z", codec, "-X", "acks=all"]
        if record.key is not None and record.value:
            options += ["-k", record.key]
        for name, value in record.headers:
            options += ["-H", name.encode() if value is None else name.encode() + b"=" + value]
        if record.value is None:
            options.append("-Z")
        return options

    def consume(
        self, topic: str, partition: int, offset: int, count: int, timeout_s: float, committed: bool = False
    ) -> list[Record]:
        options = ["-X", f"isolation.level={'read_committed' if committed else 'read_uncommitted'}"]
        options += ["-C", "-q", "-J", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count)]
        output = self._run(options, timeout_s)
        return [
            _record(json.loads(line, strict=False)) for line in output.decode("latin-1").split("\n") if line
        ]

    def _run(self, options: list[Any], timeout_s: float, given: bytes = b"") -> bytes:
        done = subprocess.run(
            [*self.base, *options], input=given, capture_output=True, timeout=timeout_s, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"kcat ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}"
            )
        return done.stdout


def _runs(records: list[Record]) -> list[list[Record]]:
    """Neighbours that one set of options can send together: the same key, headers and kind of value."""
    runs: list[list[Record]] = []
    for record in records:
        if runs and _kind(runs[-1][0]) == _kind(record):
            runs[-1].append(record)
        else:
            runs.append([record])
    return runs


def _kind(record: Record) -> tuple[object, ...]:
    return record.key, record.headers, record.value if not record.value else True


def _record(message: dict[str, Any]) -> Record:
    flat = message.get("headers") or []
    return Record(
        key=_bytes(message["key"]),
        value=_bytes(message["payload"]),
        headers=tuple(
            (name.encode("latin-1").decode(), _bytes(value))
            for name, value in zip(flat[::2], flat[1::2], strict=True)
        ),
        timestamp=message["ts"],
        offset=message["offset"],
        partition=message["partition"],
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments(parser)
    options = parser.parse_args()
    serve(Kcat(options.bootstrap, Security.read(options.security)))


if __name__ == "__main__":
    main()
