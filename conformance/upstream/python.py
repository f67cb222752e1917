"""kafka-python and aiokafka: the tests in their source packages on PyPI."""

import os
import subprocess
import sys
from importlib.metadata import version as installed_version

from conformance import parts
from conformance.server import Server
from conformance.upstream.suite import (
    OWN_BROKERS,
    TAKEN_FOR,
    TIMEOUT_S,
    WITH_RULES,
    OneBroker,
    Outcome,
    read_junit,
)

SERVICE = """class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
"""


class KafkaPython(OneBroker):
    """test/integration of the source package; its fixtures use a running broker when KAFKA_URI names one."""

    name = "kafka-python"
    settings = {  # noqa: RUF012
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "0",
        "num.partitions": "4",
        **WITH_RULES,
    }
    files = ("test_admin_integration.py", "test_consumer_integration.py", "test_producer_integration.py")
    reasons: dict[str, str] = {}  # noqa: RUF012

    def run(self, server: Server) -> Outcome:
        source = parts.sdist(self.name, installed_version(self.name))
        where = source / "test" / "integration"
        if not where.exists():
            raise parts.PartMissing(f"the source package of {self.name} ships no test/integration.")
        # The package leaves these files out. Without the first Python's own `test` package is found; the
        # second starts brokers, and its tests are given one that runs.
        (source / "test" / "__init__.py").touch()
        (source / "test" / "service.py").write_text(SERVICE)
        # The fixture looks for this folder even when it is given a broker.
        (source / "servers" / TAKEN_FOR / "kafka-bin").mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "KAFKA_URI": f"kafka://{server.bootstrap}",
            "KAFKA_VERSION": TAKEN_FOR,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH")))),
        }
        base = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "asyncio_mode=auto",
            "--rootdir",
            str(source),
        ]
        files = [str(where / file) for file in self.files]
        listed = subprocess.run(
            [*base, "--collect-only", *files],
            cwd=source,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        tests = [line for line in listed.stdout.splitlines() if "::" in line]
        if not tests:
            raise parts.PartMissing(
                f"the tests of {self.name} could not be collected: "
                f"{listed.stdout[-500:]}{listed.stderr[-500:]}"
            )
        chosen, left = self.split(tests)
        left |= {path.name: OWN_BROKERS for path in where.glob("test_*.py") if path.name not in self.files}
        if not chosen:
            # Pytest that is given no test runs all that it finds.
            return Outcome(left_out=left)
        results = parts.PARTS / f"{self.name}.xml"
        results.unlink(missing_ok=True)
        base += ["--timeout=120", "--timeout-method=signal", f"--junitxml={results}"]
        command = [*base, *(f"--deselect={each}" for each in left if "::" in each), *files]
        if self.only != "*":
            command = [*base, *chosen]
        subprocess.run(
            command, cwd=source, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )
        if not results.exists():
            return Outcome(failed=dict.fromkeys(chosen, "the run did not come to its end"), left_out=left)
        outcome = read_junit(results)
        outcome.left_out = left
        return outcome


class Aiokafka(OneBroker):
    """Its source package has held no tests since they moved to the repository's own folder."""

    name = "aiokafka"
    reasons: dict[str, str] = {}  # noqa: RUF012

    def run(self, server: Server) -> Outcome:
        source = parts.sdist(self.name, installed_version(self.name))
        tests = list(source.rglob("test_*.py"))
        if not tests:
            raise parts.PartMissing(
                f"the source package of {self.name} {installed_version(self.name)} ships no tests."
            )
        raise parts.PartMissing(
            f"the source package of {self.name} now ships {len(tests)} test files: choose among them here."
        )
